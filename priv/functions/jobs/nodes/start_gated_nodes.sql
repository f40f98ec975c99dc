-- Starts ready nodes with constraints, as admit_gated_starts does it: none is leased, and who waits for nothing is
-- due now. The follower of a node that begins again already exists.
-- Locks: none of its own but for new processes, inserted in key order: the caller has locked the leader, and the
-- existing followers; then as settle_gates.
-- Returns: one row: how many were started, and the effects.
CREATE FUNCTION start_gated_nodes(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_ordinal    integer[]
)
RETURNS TABLE (started integer, effects jsonb)
BY ITEM
AS $$
DECLARE
    v_new   integer[];  -- nodes without a follower yet
    v_again integer[];
    v_tasks record;
BEGIN
    -- The first of them is the first in the queues of its gates: by the ids of the tasks.
    SELECT array_agg(n.ordinal ORDER BY n.ordinal) FILTER (WHERE p.process_id IS NULL),
        array_agg(n.ordinal ORDER BY n.ordinal) FILTER (WHERE p.process_id IS NOT NULL)
    INTO v_new, v_again
    FROM unnest(p_ordinal) AS o (ordinal)
    JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n
        ON n.state = 'ready' AND n.gated
    LEFT JOIN LATERAL find_process(n.follower_slot, n.follower_namespace, n.follower_id) p
        ON (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
            = (p_slot, p_namespace, p_process_id, n.ordinal)
            AND p.status = 'error'
            AND n.started_at IS NOT NULL;
    IF v_again IS NOT NULL THEN
        -- A repair that came after the retry.
        PERFORM halt_processes(
            p_now, p_replica_id, p_starvation_timeout, 'error',
            array_agg((n.follower_slot, n.follower_namespace, n.follower_id)::process_key),
            array_agg('a retry of its job begins it again'::text))
        FROM unnest(v_again) AS o (ordinal)
        JOIN job_nodes n
            ON (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, o.ordinal);
    END IF;
    SELECT array_agg(t.slot) AS slot, array_agg(t.namespace) AS namespace,
        array_agg(t.process_id) AS process_id, array_agg(t.task_id) AS task_id,
        array_agg(t.constraints) AS constraints, count(*) FILTER (WHERE t.is_new) AS new_count
    INTO v_tasks
    FROM (
        SELECT s.slot, s.namespace, s.process_id, s.task_id, n.constraints, true AS is_new
        FROM start_nodes(
            p_now, p_replica_id, ARRAY[(p_slot, p_namespace, p_process_id)::process_key],
            p_ordinal => v_new) s
        CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, s.node) n
        WHERE v_new IS NOT NULL
        UNION ALL
        SELECT b.slot, b.namespace, b.process_id, b.task_id, b.constraints, false
        FROM restart_nodes(p_now, p_replica_id, p_slot, p_namespace, p_process_id, v_again) b
        WHERE v_again IS NOT NULL
    ) t;
    effects := apply_constraints(
        p_now, p_replica_id, p_starvation_timeout, v_tasks.slot, v_tasks.namespace,
        v_tasks.process_id, v_tasks.task_id, v_tasks.constraints);
    effects := merge_json(effects, describe_recovered(
        p_now, p_replica_id, p_starvation_timeout, ARRAY(
            SELECT (n.follower_slot, n.follower_namespace, n.follower_id)::process_key
            FROM unnest(v_again) AS o (ordinal)
            CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n)));
    started := v_tasks.new_count + coalesce(cardinality(v_again), 0);
    RETURN NEXT;
END;
$$;
