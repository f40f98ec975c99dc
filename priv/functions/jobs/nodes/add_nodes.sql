-- Adds nodes to the jobs of leaders, and creates missing jobs. domain/jobs/graph.py has checked the nodes; this
-- function decides which are ready, and which are skipped because a predecessor of an earlier step has failed.
--
-- l_adds: whether a leader adds nodes, or has lost its lease; see added_nodes.
-- Locks: none of its own; the caller has locked the leaders.
CREATE FUNCTION add_nodes(
    p_now        timestamptz,
    p_replica_id bigint,
    l_adds       boolean[],
    l_slot       smallint[],
    l_namespace  text[],
    l_process_id text[],
    LIKE added_nodes
)
RETURNS void
BY ITEM
AS $$
DECLARE
    v_job record;
BEGIN
    INSERT INTO jobs (
        slot, namespace, process_id, state, node_count, caller_context, trace_context, schedule_id,
        created_at, updated_at
    )
    SELECT l.slot, l.namespace, l.process_id, 'running', 0, l_caller_context[l.leader],
        l_trace_context[l.leader], l_schedule_id[l.leader], p_now, p_now
    FROM unnest(l_slot, l_namespace, l_process_id)
        WITH ORDINALITY AS l (slot, namespace, process_id, leader)
    WHERE l_adds[l.leader]
    ON CONFLICT DO NOTHING;

    UPDATE processes p
    SET led_by = 'processor'
    FROM (
        SELECT p.slot, p.process_row
        FROM unnest(l_adds, l_slot, l_namespace, l_process_id)
            AS l (adds, slot, namespace, process_id)
        JOIN LATERAL find_process(l.slot, l.namespace, l.process_id) p
            ON p.led_by IS NULL
        WHERE l.adds
        OFFSET 0
    ) l
    WHERE p.ctid = l.process_row AND p.slot BETWEEN l.slot AND l.slot;

    IF a_ordinal IS NOT NULL THEN
        UPDATE job_nodes n
        SET successors = n.successors || a.successors::integer[]
        FROM (
            SELECT n.slot, n.node_row, a.successors
            FROM unnest(a_leader, a_ordinal, a_successors) AS a (leader, ordinal, successors)
            CROSS JOIN LATERAL find_node(
                l_slot[a.leader], l_namespace[a.leader], l_process_id[a.leader], a.ordinal) n
            WHERE l_adds[a.leader]
            OFFSET 0
        ) a
        WHERE n.ctid = a.node_row AND n.slot BETWEEN a.slot AND a.slot;
    END IF;

    INSERT INTO job_nodes (
        slot, namespace, process_id, ordinal, state, gated, waits_for, revision, follower_slot,
        created_at, ready_at, name, follower_namespace, follower_id, predecessors, successors,
        args, options, constraints
    )
    SELECT l_slot[g.leader], l_namespace[g.leader], l_process_id[g.leader], g.ordinal,
        CASE WHEN w.waits_for > 0 THEN 'waiting' ELSE 'ready' END::node_state,
        g.constraints IS NOT NULL, w.waits_for, j.revision, g.slot, p_now,
        CASE WHEN w.waits_for = 0 THEN p_now END, g.name, g.namespace, g.process_id,
        w.predecessors, coalesce(g.successors, '{}')::integer[], g.args, g.options, g.constraints
    FROM (
        SELECT unnest(g_leader) AS leader, unnest(g_ordinal) AS ordinal, unnest(g_name) AS name,
            unnest(g_slot) AS slot, unnest(g_namespace) AS namespace,
            unnest(g_process_id) AS process_id, unnest(g_args) AS args,
            unnest(g_options) AS options, unnest(g_constraints) AS constraints,
            unnest(g_predecessors) AS predecessors, unnest(g_successors) AS successors
    ) g
    CROSS JOIN LATERAL find_job(l_slot[g.leader], l_namespace[g.leader], l_process_id[g.leader]) j
    CROSS JOIN LATERAL (
        -- Those of this submission are not done; of those before it, some may be.
        SELECT coalesce(g.predecessors, '{}')::integer[] AS predecessors,
            cardinality(coalesce(g.predecessors, '{}')::integer[]) - CASE
                WHEN j.node_count = 0 THEN 0
                ELSE (
                    SELECT count(*)
                    FROM unnest(g.predecessors::integer[]) AS b (ordinal)
                    CROSS JOIN LATERAL find_node(
                        l_slot[g.leader], l_namespace[g.leader], l_process_id[g.leader], b.ordinal) n
                    WHERE n.state = 'done'
                )
            END AS waits_for
        OFFSET 0
    ) w
    WHERE l_adds[g.leader];

    FOR v_job IN
        UPDATE jobs j
        SET node_count = j.node_count + c.count,
            waiting = j.waiting + c.waiting,
            ready = j.ready + c.ready,
            deadline_at = coalesce(
                l_deadline_at[c.leader], p_now + make_interval(secs => l_timeout[c.leader]),
                j.deadline_at),
            revision = j.revision + 1,
            updated_at = p_now,
            upkeep_due_at = CASE WHEN c.gated > 0 THEN coalesce(j.upkeep_due_at, p_now)
                ELSE j.upkeep_due_at END
        FROM (
            SELECT j.slot, j.job_row, c.*
            FROM (
                SELECT g.leader, count(*) AS count,
                    count(*) FILTER (WHERE n.state = 'waiting') AS waiting,
                    count(*) FILTER (WHERE n.state = 'ready') AS ready,
                    count(*) FILTER (WHERE n.state = 'ready' AND n.gated) AS gated
                FROM unnest(g_leader, g_ordinal) AS g (leader, ordinal)
                CROSS JOIN LATERAL find_node(
                    l_slot[g.leader], l_namespace[g.leader], l_process_id[g.leader], g.ordinal) n
                WHERE l_adds[g.leader]
                GROUP BY g.leader
            ) c
            CROSS JOIN LATERAL find_job(
                l_slot[c.leader], l_namespace[c.leader], l_process_id[c.leader]) j
            OFFSET 0
        ) c
        WHERE j.ctid = c.job_row AND j.slot BETWEEN c.slot AND c.slot
        RETURNING c.leader, j.join_task_id, j.node_count > c.count AS is_older
    LOOP
        CONTINUE WHEN NOT v_job.is_older;
        -- A join queued would tell of a job that goes on.
        PERFORM withdraw_join(
            p_now, l_slot[v_job.leader], l_namespace[v_job.leader], l_process_id[v_job.leader]);
        PERFORM count_nodes(p_now, p_replica_id, skip_nodes(p_now, ARRAY(
            SELECT ROW(n.slot, n.namespace, n.process_id,
                coalesce(n.skipped_because_of, n.ordinal), n.state, n.begun, n.state,
                n.successors)::moved_node
            FROM unnest(a_leader, a_ordinal) AS a (leader, ordinal)
            JOIN LATERAL find_node(
                l_slot[a.leader], l_namespace[a.leader], l_process_id[a.leader], a.ordinal) n
                ON n.state IN ('failed', 'skipped', 'cancelled')
            WHERE a.leader = v_job.leader)));
    END LOOP;
END;
$$;
