-- Finds out how a process has ended and, if the caller is to wait, notes that one waits for its end in this replica.
-- Of more than 32 replicas the latest are noted; the others look by themselves (runtime/effects/ends.py).
-- p_until_finished: whether to wait for one in error.
-- Locks: the process.
-- Returns: a row as find_end; none if there is no such process.
CREATE FUNCTION await_process(
    p_replica_id     bigint,
    p_slot           smallint,
    p_namespace      text,
    p_process_id     text,
    p_until_finished boolean
)
RETURNS TABLE (
    verdict text, init_task_id bigint, created_at timestamptz, result bytea, detail text,
    broken_by bigint, error_code integer, error_reason text
)
BY KEY
SET lock_timeout = '2s'
AS $$
BEGIN
    PERFORM
    FROM processes p
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
    FOR NO KEY UPDATE;
    FOR verdict, init_task_id, created_at, result, detail, broken_by, error_code, error_reason IN
        SELECT *
        FROM find_end(p_slot, p_namespace, p_process_id)
    LOOP
        IF verdict IS NULL OR (verdict = 'failed' AND p_until_finished) THEN
            UPDATE processes p
            SET awaited_by = (p.awaited_by || p_replica_id)[greatest(cardinality(p.awaited_by) - 30, 1):]
            WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
                AND (p.awaited_by IS NULL OR p_replica_id <> ALL (p.awaited_by));
        END IF;
        RETURN NEXT;
    END LOOP;
END;
$$;
