-- Ends nodes of jobs: decrements the counts that their successors wait for, so that some become ready; skips all
-- nodes that depend on one that was not done; and adds a join for the leader when the last node of a job has ended.
-- Nodes that have already ended are left unchanged.
-- Locks: none of its own; the caller has locked the leaders.
CREATE FUNCTION end_nodes(
    p_now           timestamptz,
    p_replica_id    bigint,
    p_leader        process_key[],
    p_ordinal       integer[],
    p_state         node_state[],
    p_result        bytea[],
    p_error_code    integer[],
    p_error_reason  text[],
    p_error_message text[],
    p_replica       bigint[] DEFAULT NULL  -- that carried the last step
)
RETURNS void
BY ITEM
AS $$
DECLARE
    v_ended   moved_node[];
    v_fails   boolean;
    v_leads   boolean;  -- some have successors
    v_lowered moved_node[];
    v_skipped moved_node[];
BEGIN
    WITH ended AS (
        UPDATE job_nodes n
        SET state = p_state[m.item],
            begun = true,
            ended_at = p_now,
            updated_at = p_now,
            replica_id = coalesce(p_replica[m.item], n.replica_id),
            revision = m.revision,
            result = p_result[m.item],
            error_code = p_error_code[m.item],
            error_reason = p_error_reason[m.item],
            error_message = p_error_message[m.item]
        FROM (
            SELECT i.item::integer, n.slot, n.node_row, n.state AS was, n.begun,
                j.revision + 1 AS revision
            FROM unnest(p_leader, p_ordinal) WITH ORDINALITY
                AS i (slot, namespace, process_id, ordinal, item)
            JOIN LATERAL find_node(i.slot, i.namespace, i.process_id, i.ordinal) n
                ON n.ended_at IS NULL
            CROSS JOIN LATERAL find_job(i.slot, i.namespace, i.process_id) j
            OFFSET 0
        ) m
        WHERE n.ctid = m.node_row AND n.slot BETWEEN m.slot AND m.slot
        RETURNING n.slot, n.namespace, n.process_id, n.ordinal, m.was, m.begun, n.state,
            n.successors
    )
    SELECT array_agg(ROW(e.*)::moved_node), bool_or(e.state <> 'done'),
        bool_or(cardinality(e.successors) > 0)
    INTO v_ended, v_fails, v_leads
    FROM ended e;
    IF v_ended IS NULL THEN
        RETURN;
    END IF;

    IF v_leads THEN
        WITH lowered AS (
            UPDATE job_nodes n
            SET waits_for = n.waits_for - m.count,
                state = CASE
                    WHEN n.state = 'waiting' AND n.waits_for = m.count THEN 'ready' ELSE n.state
                END::node_state,
                ready_at = CASE WHEN n.waits_for = m.count THEN p_now ELSE n.ready_at END,
                updated_at = p_now,
                revision = CASE
                    WHEN n.state = 'waiting' AND n.waits_for = m.count THEN m.revision
                    ELSE n.revision
                END
            FROM (
                SELECT n.slot, n.node_row, n.state AS was, g.count, j.revision + 1 AS revision
                FROM (
                    SELECT e.slot, e.namespace, e.process_id, s.ordinal, count(*) AS count
                    FROM unnest(v_ended) AS e
                    CROSS JOIN LATERAL unnest(e.successors) AS s (ordinal)
                    WHERE e.state = 'done'
                    GROUP BY e.slot, e.namespace, e.process_id, s.ordinal
                ) g
                CROSS JOIN LATERAL find_node(g.slot, g.namespace, g.process_id, g.ordinal) n
                CROSS JOIN LATERAL find_job(g.slot, g.namespace, g.process_id) j
                OFFSET 0
            ) m
            WHERE n.ctid = m.node_row AND n.slot BETWEEN m.slot AND m.slot
            RETURNING n.slot, n.namespace, n.process_id, n.ordinal, m.was, n.begun, n.state,
                n.successors
        )
        SELECT array_agg(ROW(l.*)::moved_node)
        INTO v_lowered
        FROM lowered l
        WHERE l.was = 'waiting' AND l.state = 'ready';
    END IF;

    IF v_fails AND v_leads THEN
        v_skipped := skip_nodes(p_now, v_ended);
    END IF;
    PERFORM count_nodes(p_now, p_replica_id, v_ended || v_lowered || v_skipped);
END;
$$;
