-- Puts a task that has passed its gates into the queue of its process: due now, or next behind the running step.
-- Tasks in that queue came later, and wait behind it; available ones release their gates (release_overtaken_tasks).
-- Locks: none of its own; the caller has locked the process, and the gates of the available tasks there.
-- Returns: the released gates; null if there are none.
CREATE FUNCTION enqueue_task(p_now timestamptz, p_replica_id bigint, p_task gated)
RETURNS text[]
AS $$
DECLARE
    v_is_timer boolean := p_task.task_type IN ('timeout', 'remove');
BEGIN
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id
    ) VALUES (
        p_task.slot, p_task.namespace, p_task.process_id, p_task.task_id, p_task.task_type,
        CASE WHEN v_is_timer THEN 'blocked' ELSE 'waiting' END::task_status,
        -- A timer also becomes due now: it could not have been claimed before, so it is not late.
        CASE WHEN v_is_timer THEN p_now END, p_task.attempt, p_replica_id
    );
    PERFORM enqueue_first_task(p_now, p_task.slot, p_task.namespace, p_task.process_id);
    PERFORM move_gated(
        p_now, p_task.slot, p_task.namespace, p_task.process_id, p_task.task_id, 'available');
    UPDATE tasks t
    SET scheduled_at = coalesce(t.scheduled_at, p_now)
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_task.slot, p_task.namespace, p_task.process_id, p_task.task_id);
    RETURN release_overtaken_tasks(
        p_now, p_task.slot, p_task.namespace, p_task.process_id, p_task.task_id);
END;
$$;
