-- Takes the locks of processes in key order, and waits for them. If one of them stays locked for longer than the
-- lock timeout, takes those that are free.
-- Locks: these processes.
-- Returns: for each, whether another transaction keeps it locked. One that does not exist is not locked.
CREATE FUNCTION lock_or_skip(p_key process_key[])
RETURNS boolean[]
AS $$
BEGIN
    PERFORM
    FROM (
        SELECT DISTINCT k.slot, k.namespace, k.process_id
        FROM unnest(p_key) AS k
        ORDER BY k.slot, k.namespace, k.process_id
    ) k
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        FOR NO KEY UPDATE
    ) p;
    RETURN array_fill(false, ARRAY[coalesce(cardinality(p_key), 0)]);
EXCEPTION WHEN lock_not_available THEN
    RETURN ARRAY(
        SELECT l.slot IS NULL AND EXISTS (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        )
        FROM unnest(p_key) WITH ORDINALITY AS k (slot, namespace, process_id, item)
        LEFT JOIN LATERAL (
            SELECT p.slot
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
            FOR NO KEY UPDATE SKIP LOCKED
        ) l ON true
        ORDER BY k.item
    );
END;
$$;
