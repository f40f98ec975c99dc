-- Reads unfinished tasks of processes, p_waits_max of each, in the order in which they run, and for tasks with
-- constraints everything that they wait for: the running task, the queue of the process, tasks that wait for their
-- constraints, by priority and age, and the timers by their
-- instants. An init task comes before all waiting tasks.
--
-- The result shows the facts that settle_gates decides by: the state; the smallest earlier version in the order;
-- each full gate that the process does not hold, as [gate, capacity, held, holders, position or 0, number of
-- waiting tasks], where the position is in the queue that the task waits in. A gate is read once for all items.
-- Locks: none. STABLE: all of it sees one snapshot.
-- Returns: a row for each process that has an unfinished task, with the number of its item, from 1; the tasks in
-- the form of read_processes, each with two elements more at the end: null, or of a task with constraints [state, its instant,
-- spent_us, order or null, gates or null, the older call of its process queued for the same gates or null]; and the
-- name of a timer, or null.
CREATE FUNCTION read_waits(
    p_now                timestamptz,
    p_starvation_timeout double precision,
    p_waits_max          integer,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[]
)
RETURNS TABLE (number bigint, waits json)
STABLE
BY KEY
SET enable_mergejoin = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, now());
BEGIN
    -- Tables are looked up by key in what is LATERAL and has OFFSET 0; only what was found there is joined.
    RETURN QUERY
    WITH waiting AS MATERIALIZED (
        SELECT i.number, i.slot, i.namespace, i.process_id, w.*, t.error_code, t.error_reason,
            t.error_message, t.error_rejected, t.error_metadata, t.created_at, t.timer_name,
            CASE WHEN p.status = 'error' AND w.task_type <> 'repair'
                    AND w.task_id IS DISTINCT FROM p.corrupted_by
                THEN p.status_changed_at END AS held_since,
            g.state,
            g.state_since, g.order_key, g.order_version, g.gates, g.queue, g.spent
        FROM unnest(p_slot, p_namespace, p_process_id)
            WITH ORDINALITY
            AS i (slot, namespace, process_id, number)
        CROSS JOIN LATERAL find_process(i.slot, i.namespace, i.process_id) p
        CROSS JOIN LATERAL (
            SELECT u.*
            FROM (
                SELECT h.task_id, h.task_type, 'running'::task_status AS status,
                    NULL::timestamptz AS due_at, h.attempt, h.replica_id, h.leased_at,
                    h.expires_at, 0 AS rank, 0 AS priority
                FROM running h
                WHERE (h.slot, h.namespace, h.process_id) = (i.slot, i.namespace, i.process_id)
                UNION ALL
                (SELECT c.task_id, c.task_type, c.status, c.due_at, c.attempt, NULL, NULL, NULL, 1, 0
                FROM schedule c
                WHERE (c.slot, c.namespace, c.process_id) = (i.slot, i.namespace, i.process_id)
                    AND c.task_type NOT IN ('timeout', 'remove')
                ORDER BY c.slot, c.namespace, c.process_id, c.task_id
                LIMIT p_waits_max)
                UNION ALL
                (SELECT d.task_id, d.task_type, 'blocked', d.due_at, d.attempt, NULL, NULL, NULL, 1, 0
                FROM held d
                WHERE (d.slot, d.namespace, d.process_id) = (i.slot, i.namespace, i.process_id)
                    AND d.task_type NOT IN ('timeout', 'remove')
                ORDER BY d.slot, d.namespace, d.process_id, d.task_id
                LIMIT p_waits_max)
                UNION ALL
                -- Which timer is the first does not show by its id.
                SELECT d.task_id, d.task_type, 'blocked', d.due_at, d.attempt, NULL, NULL, NULL, 3, 0
                FROM held d
                WHERE (d.slot, d.namespace, d.process_id) = (i.slot, i.namespace, i.process_id)
                    AND d.task_type IN ('timeout', 'remove')
                UNION ALL
                -- Of a crowd, those by priority that are among the first 1,000.
                (SELECT c.task_id, c.task_type,
                    CASE WHEN c.state = 'process' AND c.task_type IN ('timeout', 'remove')
                        THEN 'blocked' ELSE 'waiting' END::task_status,
                    c.run_at, c.attempt, NULL, NULL, NULL,
                    CASE WHEN c.task_type = 'init' THEN 1
                        WHEN c.task_type IN ('timeout', 'remove') THEN 3
                        ELSE 2 END,
                    CASE WHEN c.task_type = 'init' THEN 0 ELSE c.priority END
                FROM gated c
                WHERE (c.slot, c.namespace, c.process_id) = (i.slot, i.namespace, i.process_id)
                    AND c.state <> 'available'
                ORDER BY c.slot, c.namespace, c.process_id, c.task_id
                LIMIT 1000)
                UNION ALL
                SELECT s.task_id, s.task_type, s.status, s.due_at, s.attempt, NULL, NULL, NULL, 3, 0
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id) = (i.slot, i.namespace, i.process_id)
                    AND s.task_type IN ('timeout', 'remove')
            ) u
            ORDER BY u.rank, u.priority, CASE WHEN u.rank = 3 THEN u.due_at END, u.task_id
            LIMIT p_waits_max
        ) w
        CROSS JOIN LATERAL (
            SELECT t.error_code, t.error_reason, t.error_message, t.error_rejected,
                t.error_metadata, t.created_at, t.started_at, t.timer_name
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (i.slot, i.namespace, i.process_id, w.task_id)
            OFFSET 0
        ) t
        LEFT JOIN LATERAL (
            SELECT g.state, g.state_since, g.order_key, g.order_version, g.gates, g.queue,
                spent_us(v_now, g, t.started_at) AS spent
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                = (i.slot, i.namespace, i.process_id, w.task_id)
            OFFSET 0
        ) g ON true
    ),
    wanted AS MATERIALIZED (
        SELECT w.number, w.task_id, w.namespace, u.gate, u.place, l.waits_on
        FROM waiting w
        CROSS JOIN LATERAL unnest(w.gates) WITH ORDINALITY AS u (gate, place)
        LEFT JOIN LATERAL (
            SELECT l.waits_on
            FROM gate_queues l
            WHERE (l.namespace, l.queue) = (w.namespace, w.queue)
            OFFSET 0
        ) l ON true
        LEFT JOIN LATERAL (
            SELECT h.task_id
            FROM gate_holders h
            WHERE (h.slot, h.namespace, h.process_id, h.gate)
                = (w.slot, w.namespace, w.process_id, u.gate)
            OFFSET 0
        ) h ON true
        WHERE w.state <> 'available'
            AND (h.task_id IS NULL OR l.waits_on = u.gate)
    ),
    filled AS MATERIALIZED (
        SELECT n.namespace, n.gate, g.capacity, g.held, h.holders, p.places
        FROM (SELECT DISTINCT w.namespace, w.gate FROM wanted w) n
        CROSS JOIN LATERAL (
            SELECT g.capacity, g.held
            FROM gates g
            WHERE (g.namespace, g.gate) = (n.namespace, n.gate) AND g.held >= g.capacity
            OFFSET 0
        ) g
        CROSS JOIN LATERAL (
            SELECT json_agg(json_build_array(
                h.process_id, h.task_id, (extract(epoch FROM h.held_at) * 1000000)::bigint, h.hold,
                h.is_reserved
            ) ORDER BY h.held_at, h.task_id) AS holders
            FROM (
                SELECT h.process_id, h.task_id, h.held_at, h.hold, h.is_reserved
                FROM gate_holders h
                WHERE (h.namespace, h.gate) = (n.namespace, n.gate)
                ORDER BY h.namespace, h.gate, h.held_at, h.task_id
                LIMIT 10
            ) h
        ) h
        CROSS JOIN LATERAL (
            SELECT list_gate_queue(v_now, p_starvation_timeout, n.namespace, n.gate) AS places OFFSET 0
        ) p
    )
    SELECT w.number, json_agg(json_build_array(
        w.task_id, w.task_type, CASE WHEN w.state = 'available' AND w.rank > 0
            THEN 'available' ELSE w.status END::task_status,
        (extract(epoch FROM w.due_at) * 1000000)::bigint,
        w.attempt, w.replica_id, w.error_code, w.error_reason, w.error_message, w.error_rejected,
        w.error_metadata, v_now >= w.due_at,
        (extract(epoch FROM w.created_at) * 1000000)::bigint,
        (extract(epoch FROM w.leased_at) * 1000000)::bigint,
        (extract(epoch FROM w.expires_at) * 1000000)::bigint,
        (extract(epoch FROM w.held_since) * 1000000)::bigint,
        CASE WHEN w.state IS NOT NULL THEN json_build_array(
            w.state, (extract(epoch FROM w.state_since) * 1000000)::bigint, w.spent, o.facts,
            f.gates, b.older_id
        ) END, w.timer_name
    ) ORDER BY w.rank, w.priority, CASE WHEN w.rank = 3 THEN w.due_at END, w.task_id)
    FROM waiting w
    LEFT JOIN LATERAL (
        SELECT json_build_array(
            w.order_key, w.order_version, o.process_id, o.task_id, o.order_version,
            CASE WHEN (
                SELECT r.task_id
                FROM running r
                WHERE (r.slot, r.namespace, r.process_id) = (o.slot, o.namespace, o.process_id)
            ) = o.task_id THEN 'running'
            WHEN o.state = 'available' THEN 'available'
            ELSE 'waiting' END) AS facts
        FROM (
            SELECT o.slot, o.namespace, o.process_id, o.task_id, o.order_version, o.state
            FROM gated o
            WHERE (o.namespace, o.order_key) = (w.namespace, w.order_key)
                AND o.order_version < w.order_version
            ORDER BY o.namespace, o.order_key, o.order_version, o.task_id
            LIMIT 1
        ) o
        WHERE w.state <> 'available' AND w.order_key IS NOT NULL
        OFFSET 0
    ) o ON true
    LEFT JOIN LATERAL (
        SELECT o.task_id AS older_id
        FROM gated o
        WHERE w.state = 'process'
            AND w.gates <> '{}'
            AND w.task_type NOT IN ('timeout', 'remove')
            AND (o.slot, o.namespace, o.process_id, o.state, o.gates)
                = (w.slot, w.namespace, w.process_id, 'gates', w.gates)
            AND o.task_id < w.task_id
            AND o.task_type NOT IN ('timeout', 'remove')
        ORDER BY o.slot, o.namespace, o.process_id, o.state, o.gates, o.task_id
        LIMIT 1
    ) b ON true
    LEFT JOIN (
        SELECT n.number, n.task_id, json_agg(json_build_array(
            n.gate, g.capacity, g.held, g.holders,
            CASE WHEN n.waits_on = n.gate
                THEN coalesce(array_position(g.places, n.task_id), cardinality(g.places))
                ELSE 0 END,
            cardinality(g.places)
        ) ORDER BY n.place) AS gates
        FROM wanted n
        JOIN filled g USING (namespace, gate)
        GROUP BY n.number, n.task_id
    ) f USING (number, task_id)
    GROUP BY w.number;
END;
$$;
