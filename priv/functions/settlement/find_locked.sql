-- Finds which of the given processes are locked by another transaction. Does not wait for locks.
-- Locks: the others, in key order, with SKIP LOCKED, until it has answered.
-- Returns: the items, from 1, in any order; a process that does not exist is not locked.
CREATE FUNCTION find_locked(
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[]
)
RETURNS TABLE (item integer)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_free integer[];
BEGIN
    -- Only the locks are written to the WAL, so the commit need not wait for a disk or a standby.
    PERFORM set_config('synchronous_commit', 'off', true);

    WITH free AS (
        SELECT i.item::integer
        FROM processes p
        JOIN unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
            AS i (slot, namespace, process_id, item)
            USING (slot, namespace, process_id)
        ORDER BY p.slot, p.namespace, p.process_id
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
    SELECT coalesce(array_agg(f.item), '{}') INTO v_free FROM free f;

    RETURN QUERY
    SELECT i.item::integer
    FROM unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
        AS i (slot, namespace, process_id, item)
    JOIN processes p USING (slot, namespace, process_id)
    WHERE i.item <> ALL (v_free);
END;
$$;
