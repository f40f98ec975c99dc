-- Finds the task of a process that a bulk cancellation ends: the one that runs, or else the first in the queue.
-- Locks: none.
-- Returns: its id; null if there is none.
CREATE FUNCTION find_cancellable(p_slot smallint, p_namespace text, p_process_id text)
RETURNS bigint
STABLE
AS $$
BEGIN
    RETURN coalesce(
        (SELECT r.task_id
         FROM running r
         WHERE (r.slot, r.namespace, r.process_id) = (p_slot, p_namespace, p_process_id)),
        (find_first_task(p_slot, p_namespace, p_process_id)).task_id);
END;
$$;
