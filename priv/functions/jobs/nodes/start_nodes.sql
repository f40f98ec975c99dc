-- Starts the followers of ready nodes, in the order of their ordinals, as long as the window of the job has room: at
-- most 512 have no step settled (domain/jobs/job.py: WINDOW). Nodes with constraints, which could keep the others
-- out while they wait at a gate, take no place in it: maintain_job starts them, and gives the p_ordinal of a job.
-- A follower whose id is taken, or whose namespace is gone, fails its node.
-- p_item, p_item_namespace, p_expires_after: workers that are free for the init of a follower in such a namespace,
-- each for one. Null: none, and whatever is started is due at once.
-- Locks: processes (inserted in key order); the caller has locked the leaders.
-- Returns: a row per follower started; item and token where a worker has it.
CREATE FUNCTION start_nodes(
    p_now            timestamptz,
    p_replica_id     bigint,
    p_leader         process_key[],
    p_item           integer[] DEFAULT NULL,
    p_item_namespace text[] DEFAULT NULL,
    p_expires_after  double precision[] DEFAULT NULL,
    p_ordinal        integer[] DEFAULT NULL
)
RETURNS TABLE (
    slot smallint, namespace text, process_id text, task_id bigint, item integer, token bigint,
    leader_slot smallint, leader_namespace text, leader_id text, node integer, options json,
    args bytea, caller_context json, trace_context json
)
BY ITEM
AS $$
DECLARE
    v_starts  starting_node[];
    v_created integer;
    v_taken   starting_node[];
BEGIN
    SELECT array_agg(ROW(
        s.node_row, s.slot, s.namespace, s.process_id, s.ordinal, s.revision, s.follower_slot,
        s.follower_namespace, s.follower_id, s.task_id, f.items[s.place],
        CASE WHEN f.items[s.place] IS NOT NULL THEN nextval('lease_tokens') END,
        f.untils[s.place], s.options, s.args, s.caller_context, s.trace_context
    )::starting_node ORDER BY s.follower_slot, s.follower_namespace, s.follower_id)
    INTO v_starts
    FROM (
        SELECT n.*, j.revision + 1 AS revision, j.caller_context, j.trace_context,
            nextval('task_ids') AS task_id,
            CASE WHEN p_item IS NOT NULL THEN row_number() OVER (
                PARTITION BY n.follower_namespace ORDER BY l.ordinality, n.ordinal)
            END AS place
        FROM unnest(p_leader) WITH ORDINALITY AS l (slot, namespace, process_id, ordinality)
        JOIN LATERAL find_job(l.slot, l.namespace, l.process_id) j
            ON j.state = 'running' AND j.ready > 0
                AND (j.beginning < 512 OR p_ordinal IS NOT NULL)
        CROSS JOIN LATERAL (
            (SELECT n.ctid AS node_row, n.slot, n.namespace, n.process_id, n.ordinal,
                n.follower_slot, n.follower_namespace, n.follower_id, n.options, n.args
            FROM job_nodes n
            WHERE p_ordinal IS NULL
                AND (n.slot, n.namespace, n.process_id) = (l.slot, l.namespace, l.process_id)
                AND n.queued AND NOT n.gated
            ORDER BY n.slot, n.namespace, n.process_id, n.ordinal
            LIMIT greatest(512 - j.beginning, 0))
            UNION ALL
            SELECT n.node_row, n.slot, n.namespace, n.process_id, n.ordinal, n.follower_slot,
                n.follower_namespace, n.follower_id, n.options, n.args
            FROM unnest(p_ordinal) AS o (ordinal)
            CROSS JOIN LATERAL find_node(l.slot, l.namespace, l.process_id, o.ordinal) n
        ) n
        OFFSET 0
    ) s
    LEFT JOIN (
        SELECT f.namespace, array_agg(f.item) AS items, array_agg(f.expires_after) AS untils
        FROM (
            SELECT unnest(p_item) AS item, unnest(p_item_namespace) AS namespace,
                unnest(p_expires_after) AS expires_after
        ) f
        GROUP BY f.namespace
    ) f ON f.namespace = s.follower_namespace;
    IF v_starts IS NULL THEN
        RETURN;
    END IF;

    INSERT INTO processes (
        slot, namespace, process_id, status, created_at, status_changed_at, init_task_id,
        leader_slot, leader_namespace, leader_id, node, job_options
    )
    SELECT s.follower_slot, s.follower_namespace, s.follower_id, 'init', p_now, p_now, s.task_id,
        s.slot, s.namespace, s.process_id, s.ordinal, s.options
    FROM unnest(v_starts) AS s
    WHERE s.follower_namespace = ANY (ARRAY(
        SELECT n.name
        FROM namespaces n
        WHERE n.name = ANY (ARRAY(SELECT t.follower_namespace FROM unnest(v_starts) AS t))
    ))
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_created = ROW_COUNT;

    IF v_created < cardinality(v_starts) THEN
        SELECT array_agg(s) FILTER (WHERE p.init_task_id IS NULL),
            array_agg(s) FILTER (WHERE p.init_task_id IS NOT NULL)
        INTO v_taken, v_starts
        FROM unnest(v_starts) AS s
        LEFT JOIN LATERAL find_process(s.follower_slot, s.follower_namespace, s.follower_id) p
            ON p.init_task_id = s.task_id;
    END IF;

    IF v_created > 0 THEN
        INSERT INTO process_counts (namespace, status_after, process_count)
        SELECT s.follower_namespace, 'init', count(*)
        FROM unnest(v_starts) AS s
        GROUP BY s.follower_namespace;

        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, first_started_at, started_at, token, args, caller_context, trace_context,
            replica_id
        )
        SELECT s.follower_slot, s.follower_namespace, s.follower_id, s.task_id, 'init',
            CASE WHEN s.token IS NULL THEN 'waiting' ELSE 'running' END::task_status,
            (s.token IS NOT NULL)::integer, p_now, p_now,
            CASE WHEN s.token IS NOT NULL THEN p_now END,
            CASE WHEN s.token IS NOT NULL THEN p_now END, s.token, s.args, s.caller_context,
            s.trace_context, CASE WHEN s.token IS NOT NULL THEN p_replica_id END
        FROM unnest(v_starts) AS s;

        INSERT INTO running (
            slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
            leased_at, expires_at
        )
        SELECT s.follower_slot, s.follower_namespace, s.follower_id, s.task_id, 'init', 1, s.token,
            p_replica_id, p_now, p_now + make_interval(secs => s.expires_after)
        FROM unnest(v_starts) AS s
        WHERE s.token IS NOT NULL;

        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
        )
        SELECT s.follower_slot, s.follower_namespace, s.follower_id, s.task_id, 'init', 'waiting',
            p_now, p_replica_id
        FROM unnest(v_starts) AS s
        WHERE s.token IS NULL;

        UPDATE job_nodes n
        SET state = 'running', started_at = p_now, updated_at = p_now,
            begun = p_ordinal IS NOT NULL,
            revision = s.revision
        FROM unnest(v_starts) AS s
        WHERE n.ctid = s.node_row AND n.slot BETWEEN s.slot AND s.slot;

        UPDATE jobs j
        SET ready = j.ready - c.count,
            running = j.running + c.count,
            beginning = j.beginning + CASE WHEN p_ordinal IS NULL THEN c.count ELSE 0 END,
            revision = j.revision + 1,
            updated_at = p_now
        FROM (
            SELECT j.slot, j.job_row, c.count
            FROM (
                SELECT s.slot, s.namespace, s.process_id, count(*) AS count
                FROM unnest(v_starts) AS s
                GROUP BY s.slot, s.namespace, s.process_id
            ) c
            CROSS JOIN LATERAL find_job(c.slot, c.namespace, c.process_id) j
            OFFSET 0
        ) c
        WHERE j.ctid = c.job_row AND j.slot BETWEEN c.slot AND c.slot;

        RETURN QUERY
        SELECT s.follower_slot, s.follower_namespace, s.follower_id, s.task_id, s.item, s.token,
            s.slot, s.namespace, s.process_id, s.ordinal, s.options,
            CASE WHEN s.token IS NOT NULL THEN s.args END, s.caller_context, s.trace_context
        FROM unnest(v_starts) AS s;
    END IF;

    IF v_taken IS NOT NULL THEN
        PERFORM end_nodes(
            p_now, p_replica_id, array_agg((s.slot, s.namespace, s.process_id)::process_key),
            array_agg(s.ordinal), array_agg('failed'::node_state), NULL,
            array_agg(CASE WHEN n.name IS NULL THEN 5 ELSE 6 END),
            array_agg(CASE
                WHEN n.name IS NULL THEN 'NAMESPACE_NOT_FOUND' ELSE 'PROCESS_ALREADY_EXISTS' END),
            array_agg(CASE
                WHEN n.name IS NULL THEN format('namespace %s does not exist', s.follower_namespace)
                ELSE format('process %s already exists', s.follower_id) END))
        FROM unnest(v_taken) AS s
        LEFT JOIN namespaces n ON n.name = s.follower_namespace;
    END IF;
END;
$$;
