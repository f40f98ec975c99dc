-- Finds those of some processes that another transaction holds locked, or whose leader it does: what a
-- settlement of them would have to wait for. Does not wait for locks.
-- Locks: the others and their leaders, in key order, with SKIP LOCKED, until it has answered.
-- Returns: the items, from 1, in any order; a process that does not exist is not locked.
CREATE FUNCTION find_locked_with_leaders(
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[]
)
RETURNS TABLE (item integer)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_items integer[];   -- a place per process concerned: the item itself, or its leader
    v_rows  tid[];
    v_free  tid[];
BEGIN
    -- Only the locks are written to the WAL, so the commit need not wait for a disk or a standby.
    PERFORM set_config('synchronous_commit', 'off', true);

    SELECT array_agg(k.item), array_agg(k.process_row)
    INTO v_items, v_rows
    FROM (
        SELECT i.item::integer, f.process_row
        FROM unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
            AS i (slot, namespace, process_id, item)
        CROSS JOIN LATERAL find_process(i.slot, i.namespace, i.process_id) p
        CROSS JOIN LATERAL (
            SELECT p.process_row
            UNION ALL
            SELECT l.ctid
            FROM processes l
            WHERE (l.slot, l.namespace, l.process_id)
                = (p.leader_slot, p.leader_namespace, p.leader_id)
        ) f
    ) k;

    WITH free AS (
        SELECT p.ctid AS process_row
        FROM processes p
        WHERE p.ctid = ANY (v_rows)
        ORDER BY p.slot, p.namespace, p.process_id
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
    SELECT coalesce(array_agg(f.process_row), '{}') INTO v_free FROM free f;

    RETURN QUERY
    SELECT DISTINCT k.item
    FROM unnest(v_items, v_rows) AS k (item, process_row)
    WHERE k.process_row <> ALL (v_free);
END;
$$;
