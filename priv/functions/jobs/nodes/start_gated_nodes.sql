-- Starts ready nodes with constraints, as admit_gated_starts does it: none is leased, and who waits for
-- nothing is due now. A follower of a node that begins again is there already.
-- They take no place in the window of the job: what waits at a gate would keep the others out of it.
-- Locks: none of its own but for new processes, inserted in key order: the caller has locked the leader,
-- and the followers that are there; then as settle_gates.
-- Returns: one row: how many were started, and what settle_gates returns as settle_gates_batch tells it.
CREATE FUNCTION start_gated_nodes(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint,
    p_namespace          text,
    p_process_id         text,
    p_ordinal            integer[]
)
RETURNS TABLE (started integer, effects jsonb)
BY INDEX
SET enable_memoize = off
AS $$
DECLARE
    v_ordinals integer[];  -- of those whose followers are new
    v_tasks    bigint[];
    v_again    integer[];
    v_taken    integer[];
    v_count    integer;
    v_gated    record;
BEGIN
    -- The first of them is the first in the queues of its gates: by the ids of the tasks.
    SELECT array_agg(n.ordinal ORDER BY n.ordinal) FILTER (WHERE p.process_id IS NULL),
        array_agg(n.ordinal ORDER BY n.ordinal) FILTER (WHERE p.process_id IS NOT NULL)
    INTO v_ordinals, v_again
    FROM unnest(p_ordinal) AS o (ordinal)
    CROSS JOIN LATERAL (
        SELECT n.ordinal, n.follower_slot, n.follower_namespace, n.follower_id, n.started_at
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, o.ordinal)
            AND n.state = 'ready' AND n.gated
        OFFSET 0
    ) n
    LEFT JOIN LATERAL (
        SELECT p.process_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id)
            AND (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
                = (p_slot, p_namespace, p_process_id, n.ordinal)
            AND p.status = 'error'
            AND n.started_at IS NOT NULL
        OFFSET 0
    ) p ON true;
    SELECT array_agg(nextval('task_ids')) INTO v_tasks FROM unnest(v_ordinals);

    INSERT INTO processes (
        slot, namespace, process_id, status, created_at, status_changed_at, init_task_id,
        leader_slot, leader_namespace, leader_id, node, job_options
    )
    SELECT n.follower_slot, n.follower_namespace, n.follower_id, 'init', p_now, p_now, s.task_id,
        n.slot, n.namespace, n.process_id, n.ordinal, n.options
    FROM unnest(v_ordinals, v_tasks) AS s (ordinal, task_id)
    CROSS JOIN LATERAL (
        SELECT n.*
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, s.ordinal)
        OFFSET 0
    ) n
    WHERE n.follower_namespace = ANY (ARRAY(SELECT m.name FROM namespaces m))
    ORDER BY n.follower_slot, n.follower_namespace, n.follower_id
    ON CONFLICT DO NOTHING;

    -- Those that we have just created bear the ids that we have just drawn.
    SELECT array_agg(s.ordinal) FILTER (WHERE p.process_id IS NOT NULL),
        array_agg(s.task_id) FILTER (WHERE p.process_id IS NOT NULL),
        array_agg(s.ordinal) FILTER (WHERE p.process_id IS NULL)
    INTO v_ordinals, v_tasks, v_taken
    FROM unnest(v_ordinals, v_tasks) AS s (ordinal, task_id)
    CROSS JOIN LATERAL (
        SELECT n.follower_slot, n.follower_namespace, n.follower_id
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, s.ordinal)
        OFFSET 0
    ) n
    LEFT JOIN LATERAL (
        SELECT p.process_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id)
            AND p.init_task_id = s.task_id
        OFFSET 0
    ) p ON true;

    INSERT INTO tasks (
        slot, namespace, process_id, task_id, task_type, status, created_at, scheduled_at, args,
        caller_context, trace_context
    )
    SELECT n.follower_slot, n.follower_namespace, n.follower_id, s.task_id, 'init', 'waiting',
        p_now, p_now, n.args, j.caller_context, j.trace_context
    FROM unnest(v_ordinals, v_tasks) AS s (ordinal, task_id)
    CROSS JOIN LATERAL (
        SELECT n.*
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, s.ordinal)
        OFFSET 0
    ) n
    CROSS JOIN LATERAL (
        SELECT j.caller_context, j.trace_context
        FROM jobs j
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
        OFFSET 0
    ) j;
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
    )
    SELECT n.follower_slot, n.follower_namespace, n.follower_id, s.task_id, 'init', 'waiting',
        p_now, p_replica_id
    FROM unnest(v_ordinals, v_tasks) AS s (ordinal, task_id)
    CROSS JOIN LATERAL (
        SELECT n.*
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, s.ordinal)
        OFFSET 0
    ) n;
    UPDATE job_nodes n
    SET state = 'running', started_at = p_now, updated_at = p_now, begun = true,
        revision = s.revision
    FROM (
        SELECT n.node_row, j.revision + 1 AS revision
        FROM unnest(v_ordinals) AS s (ordinal)
        CROSS JOIN LATERAL (
            SELECT n.ctid AS node_row
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, s.ordinal)
            OFFSET 0
        ) n
        CROSS JOIN LATERAL (
            SELECT j.revision
            FROM jobs j
            WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
            OFFSET 0
        ) j
        OFFSET 0
    ) s
    WHERE n.ctid = s.node_row;
    v_count := coalesce(cardinality(v_ordinals), 0);
    IF v_count > 0 THEN
        UPDATE jobs j
        SET ready = j.ready - v_count, running = j.running + v_count, revision = j.revision + 1,
            updated_at = p_now
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    END IF;

    IF v_again IS NOT NULL THEN
        -- A repair that came after the retry.
        PERFORM halt_busy_processes(
            p_now, p_replica_id, p_starvation_timeout, array_agg(n.follower_slot),
            array_agg(n.follower_namespace), array_agg(n.follower_id))
        FROM unnest(v_again) AS o (ordinal)
        JOIN job_nodes n
            ON (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, o.ordinal);
    END IF;
    SELECT array_agg(t.slot) AS slot, array_agg(t.namespace) AS namespace,
        array_agg(t.process_id) AS process_id, array_agg(t.task_id) AS task_id,
        array_agg(t.constraints) AS constraints
    INTO v_gated
    FROM (
        SELECT n.follower_slot AS slot, n.follower_namespace AS namespace,
            n.follower_id AS process_id, s.task_id, n.constraints
        FROM unnest(v_ordinals, v_tasks) AS s (ordinal, task_id)
        CROSS JOIN LATERAL (
            SELECT n.*
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, s.ordinal)
            OFFSET 0
        ) n
        UNION ALL
        SELECT b.slot, b.namespace, b.process_id, b.task_id, b.constraints
        FROM restart_nodes(p_now, p_replica_id, p_slot, p_namespace, p_process_id, v_again) b
        WHERE v_again IS NOT NULL
    ) t;
    effects := apply_constraints(
        p_now, p_replica_id, p_starvation_timeout, v_gated.slot, v_gated.namespace, v_gated.process_id,
        v_gated.task_id, v_gated.constraints);
    IF v_taken IS NOT NULL THEN
        PERFORM end_nodes(
            p_now, p_replica_id, array_agg(n.slot), array_agg(n.namespace),
            array_agg(n.process_id), array_agg(n.ordinal), array_agg('failed'::node_state), NULL,
            array_agg(CASE WHEN m.name IS NULL THEN 5 ELSE 6 END),
            array_agg(CASE
                WHEN m.name IS NULL THEN 'NAMESPACE_NOT_FOUND' ELSE 'PROCESS_ALREADY_EXISTS' END),
            array_agg(CASE
                WHEN m.name IS NULL THEN format('namespace %s does not exist', n.follower_namespace)
                ELSE format('process %s already exists', n.follower_id) END))
        FROM unnest(v_taken) AS s (ordinal)
        CROSS JOIN LATERAL (
            SELECT n.*
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, s.ordinal)
            OFFSET 0
        ) n
        LEFT JOIN namespaces m ON m.name = n.follower_namespace;
    END IF;
    started := v_count + coalesce(cardinality(v_again), 0);
    RETURN NEXT;
END;
$$;
