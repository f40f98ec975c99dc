-- Puts the held tasks of processes that recover back into their queues. None of them is due yet, and a timer keeps its
-- instant: the caller makes the first one due.
-- Locks: none of its own; the caller has locked the processes.
CREATE FUNCTION release_held(p_replica_id bigint, p_key process_key[])
RETURNS void
AS $$
BEGIN
    WITH released AS (
        DELETE FROM held h
        USING unnest(p_key) AS k
        WHERE (h.slot, h.namespace, h.process_id) = (k.slot, k.namespace, k.process_id)
        RETURNING h.*
    )
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id
    )
    SELECT r.slot, r.namespace, r.process_id, r.task_id, r.task_type,
        CASE WHEN r.task_type IN ('timeout', 'remove') THEN 'blocked' ELSE 'waiting' END::task_status,
        r.due_at, r.attempt, p_replica_id
    FROM released r;
END;
$$;
