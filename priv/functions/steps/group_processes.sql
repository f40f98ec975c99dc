-- Gives broken processes that have no group of failures theirs (find_ungrouped), unless they have changed since.
-- Locks: the processes, in key order, with SKIP LOCKED.
-- Returns: how many were grouped.
CREATE FUNCTION group_processes(
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_broken_at  timestamptz[],
    p_reason     text[],
    p_failure    json[]
)
RETURNS bigint
BY ITEM
AS $$
DECLARE
    v_items integer[];
BEGIN
    SELECT array_agg(i.item)
    INTO v_items
    FROM (
        SELECT i.item::integer, i.slot, i.namespace, i.process_id, i.broken_at
        FROM unnest(p_slot, p_namespace, p_process_id, p_broken_at) WITH ORDINALITY
            AS i (slot, namespace, process_id, broken_at, item)
        ORDER BY i.slot, i.namespace, i.process_id
    ) i
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            AND p.detail IS NOT NULL AND p.failure_id IS NULL AND p.status_changed_at = i.broken_at
        FOR NO KEY UPDATE SKIP LOCKED
    ) p;
    UPDATE processes p
    SET broken_at = p.status_changed_at,
        failure_reason = p_reason[i.item],
        failure_id = make_failure_id(p.namespace, p_reason[i.item], p_failure[i.item])
    FROM unnest(v_items) AS i (item)
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item]);
    PERFORM note_failures(
        array_agg(p_namespace[i.item]), array_agg(p_process_id[i.item]), array_agg(p_broken_at[i.item]),
        array_agg(p_reason[i.item]), array_agg(p_failure[i.item]))
    FROM unnest(v_items) AS i (item);
    RETURN coalesce(cardinality(v_items), 0);
END;
$$;
