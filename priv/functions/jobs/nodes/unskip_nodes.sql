-- Sets nodes back to waiting that were skipped because of nodes which run again now. A node with another
-- predecessor that failed, was cancelled or is still skipped stays skipped, with that node as its cause.
-- Locks: none of its own; the caller has locked the leader, and counts the nodes (recount_job).
CREATE FUNCTION unskip_nodes(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text, p_ordinal integer[]
)
RETURNS void
BY ITEM
AS $$
DECLARE
    v_before integer[];      -- predecessors of those that were skipped
    v_causes moved_node[];
BEGIN
    WITH RECURSIVE below AS (
        SELECT s.ordinal
        FROM unnest(p_ordinal) AS o (ordinal)
        CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n
        CROSS JOIN LATERAL unnest(n.successors) AS s (ordinal)
        UNION
        SELECT s.ordinal
        FROM below b
        JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, b.ordinal) n
            ON n.state = 'skipped'
        CROSS JOIN LATERAL unnest(n.successors) AS s (ordinal)
    ),
    waiting AS (
        UPDATE job_nodes n
        SET state = 'waiting', skipped_because_of = NULL, ended_at = NULL, updated_at = p_now,
            revision = m.revision
        FROM (
            SELECT n.slot, n.node_row, j.revision + 1 AS revision
            FROM below b
            JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, b.ordinal) n
                ON n.state = 'skipped'
            CROSS JOIN LATERAL find_job(p_slot, p_namespace, p_process_id) j
            OFFSET 0
        ) m
        WHERE n.ctid = m.node_row AND n.slot BETWEEN m.slot AND m.slot
        RETURNING n.predecessors
    )
    SELECT array_agg(DISTINCT q.ordinal)
    INTO v_before
    FROM waiting w
    CROSS JOIN LATERAL unnest(w.predecessors) AS q (ordinal);

    SELECT array_agg(ROW(
        p_slot, p_namespace, p_process_id, coalesce(n.skipped_because_of, n.ordinal), n.state,
        false, n.state, n.successors)::moved_node)
    INTO v_causes
    FROM unnest(v_before) AS q (ordinal)
    JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, q.ordinal) n
        ON n.state IN ('failed', 'cancelled', 'skipped');
    PERFORM skip_nodes(p_now, v_causes);
END;
$$;
