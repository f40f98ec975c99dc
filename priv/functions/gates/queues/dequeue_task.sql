-- Takes a task out of the queue of its process, because it waits for its constraints or was cancelled. If the
-- process runs no step, the next task of the queue becomes due; if the queue is empty, the blocked timer wakes.
-- Locks: none of its own; the caller has locked the process.
CREATE FUNCTION dequeue_task(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text, p_task_id bigint
)
RETURNS void
AS $$
BEGIN
    DELETE FROM schedule s
    WHERE (s.slot, s.namespace, s.process_id, s.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    PERFORM enqueue_first_task(p_now, p_slot, p_namespace, p_process_id);
END;
$$;
