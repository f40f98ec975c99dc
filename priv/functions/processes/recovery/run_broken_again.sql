-- Runs the task that broke a process again, now, under its own id and with all its attempts. The process stays in error
-- until the task has ended. It had its turn in its order, and takes no other: a smaller version may be held behind it.
-- Locks: none of its own; the caller has locked the process. If the task has constraints, as settle_gates.
-- Returns: what settle_gates returns, or the task as due now.
CREATE FUNCTION run_broken_again(LIKE own_arguments, p_process processes)
RETURNS jsonb
AS $$
DECLARE
    v_task tasks%ROWTYPE;
BEGIN
    UPDATE tasks t
    SET status = 'waiting', attempt_count = 0, scheduled_at = p_now, first_started_at = NULL,
        started_at = NULL, tried_for = NULL, finished_at = NULL, token = NULL, replica_id = NULL
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_process.slot, p_process.namespace, p_process.process_id, p_process.corrupted_by)
    RETURNING * INTO v_task;
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
    ) VALUES (
        v_task.slot, v_task.namespace, v_task.process_id, v_task.task_id, v_task.task_type,
        'waiting', p_now, p_replica_id
    );
    RETURN apply_constraints(
        p_now, p_replica_id, p_starvation_timeout, ARRAY[v_task.slot], ARRAY[v_task.namespace],
        ARRAY[v_task.process_id], ARRAY[v_task.task_id],
        ARRAY[(v_task.constraints::jsonb - 'order')::json]);
END;
$$;
