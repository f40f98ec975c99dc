-- Skips the nodes that depend, directly or not, on nodes that did not succeed.
-- p_causes: the nodes that did not succeed, with their successors; `ordinal` is recorded as the cause.
-- Locks: none of its own; the caller has locked the leaders.
-- Returns: the skipped nodes, not counted yet (count_nodes); null if there are none.
CREATE FUNCTION skip_nodes(p_now timestamptz, p_causes moved_node[])
RETURNS moved_node[]
BY ITEM
AS $$
DECLARE
    v_cause   moved_node;
    v_more    moved_node[];
    v_skipped moved_node[];
BEGIN
    -- One after the other: nodes that the first cause skipped are not visited again and keep that cause.
    FOR v_cause IN
        SELECT c.*
        FROM unnest(p_causes) AS c
        WHERE c.state <> 'done' AND cardinality(c.successors) > 0
        ORDER BY c.slot, c.namespace, c.process_id, c.ordinal
    LOOP
        WITH RECURSIVE doomed AS (
            SELECT s.ordinal
            FROM unnest(v_cause.successors) AS s (ordinal)
            UNION
            SELECT s.ordinal
            FROM doomed d
            JOIN LATERAL find_node(v_cause.slot, v_cause.namespace, v_cause.process_id, d.ordinal) n
                ON n.state = 'waiting'
            CROSS JOIN LATERAL unnest(n.successors) AS s (ordinal)
        ),
        skipped AS (
            UPDATE job_nodes n
            SET state = 'skipped',
                skipped_because_of = v_cause.ordinal,
                ended_at = p_now,
                updated_at = p_now,
                revision = m.revision
            FROM (
                SELECT n.slot, n.node_row, j.revision + 1 AS revision
                FROM doomed d
                JOIN LATERAL find_node(
                    v_cause.slot, v_cause.namespace, v_cause.process_id, d.ordinal) n
                    ON n.state = 'waiting'
                CROSS JOIN (
                    SELECT j.revision
                    FROM jobs j
                    WHERE (j.slot, j.namespace, j.process_id)
                        = (v_cause.slot, v_cause.namespace, v_cause.process_id)
                    OFFSET 0
                ) j
                OFFSET 0
            ) m
            WHERE n.ctid = m.node_row AND n.slot BETWEEN m.slot AND m.slot
            RETURNING n.slot, n.namespace, n.process_id, n.ordinal, 'waiting'::node_state, false,
                n.state, n.successors
        )
        SELECT array_agg(ROW(s.*)::moved_node)
        INTO v_more
        FROM skipped s;
        v_skipped := v_skipped || v_more;
    END LOOP;
    RETURN v_skipped;
END;
$$;
