-- Finds which of the given processes are locked by another transaction, or, with p_with_leaders, have a locked
-- leader: their settlement would have to wait for it. Does not wait for locks.
-- Locks: the others, with SKIP LOCKED, until it has answered.
-- Returns: the items, from 1, in any order; a process that does not exist is not locked.
CREATE FUNCTION find_locked(
    p_with_leaders boolean,
    p_slot         smallint[],
    p_namespace    text[],
    p_process_id   text[]
)
RETURNS TABLE (item integer)
BY INDEX
SET lock_timeout = '300ms'
AS $$
BEGIN
    -- Only the locks are written to the WAL, so the commit need not wait for a disk or a standby.
    PERFORM set_config('synchronous_commit', 'off', true);

    RETURN QUERY
    WITH needed AS MATERIALIZED (
        SELECT i.item::integer, f.*
        FROM unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
            AS i (slot, namespace, process_id, item)
        CROSS JOIN LATERAL find_process(i.slot, i.namespace, i.process_id) p
        CROSS JOIN LATERAL (
            SELECT p.slot, p.namespace, p.process_id
            UNION ALL
            SELECT l.slot, l.namespace, l.process_id
            FROM processes l
            WHERE p_with_leaders
                AND (l.slot, l.namespace, l.process_id)
                    = (p.leader_slot, p.leader_namespace, p.leader_id)
        ) f
    ),
    free AS MATERIALIZED (
        SELECT p.slot, p.namespace, p.process_id
        FROM needed n
        CROSS JOIN LATERAL (
            SELECT p.slot, p.namespace, p.process_id
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (n.slot, n.namespace, n.process_id)
            FOR NO KEY UPDATE SKIP LOCKED
        ) p
    )
    SELECT DISTINCT n.item
    FROM needed n
    WHERE (n.slot, n.namespace, n.process_id) NOT IN (SELECT * FROM free);
END;
$$;
