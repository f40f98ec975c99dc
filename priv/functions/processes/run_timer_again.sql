-- Runs a timer that broke its process again, now, as a new task.
-- Locks: none of its own; the caller has locked the process.
CREATE FUNCTION run_timer_again(
    p_now timestamptz, p_replica_id bigint, p_broken tasks, p_task_id bigint
)
RETURNS void
AS $$
BEGIN
    INSERT INTO tasks (
        slot, namespace, process_id, task_id, task_type, status, created_at, scheduled_at,
        step_timeout, history_after, history_limit, history_backward, args, trace_context
    ) VALUES (
        p_broken.slot, p_broken.namespace, p_broken.process_id, p_task_id, p_broken.task_type,
        'waiting', p_now, p_now, p_broken.step_timeout, p_broken.history_after,
        p_broken.history_limit, p_broken.history_backward, p_broken.args, p_broken.trace_context
    );
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
    ) VALUES (
        p_broken.slot, p_broken.namespace, p_broken.process_id, p_task_id, p_broken.task_type,
        'waiting', p_now, p_replica_id
    );
END;
$$;
