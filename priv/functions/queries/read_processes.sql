-- Reads processes as of one instant: each with its timer, what its unfinished tasks wait for, and a range of its
-- history, with events in the order of their ids.
--
-- Items of a batch delay each other, so each is bounded: of a process with more than p_state_bytes_max of state,
-- only is_whole = false is returned; a range of more than p_events_max events is left out, and one with more than
-- p_event_bytes_max is truncated. event_count is the number of events in the range. The waits of a process that is
-- gated or has had named timers come from read_waits, and only such a one has `timers`: all of them, with their names.
-- Only one that has asked for replies, or is asked for some, has `replies`, as read_replies returns them.
-- Locks: none. STABLE: all of it sees one snapshot.
-- Returns: a row for each process that exists, with the number of its item, from 1.
CREATE FUNCTION read_processes(
    p_now                timestamptz,
    p_starvation_timeout double precision,
    p_state_bytes_max    integer,
    p_events_max         integer,
    p_event_bytes_max    integer,
    p_waits_max          integer,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_after              bigint[],
    p_limit              integer[],
    p_backward           boolean[]
)
RETURNS TABLE (
    number bigint, is_whole boolean, process_status process_status, previous_status process_status,
    detail text, aux_state bytea, metadata jsonb, corrupted_by bigint, created_at timestamptz,
    status_changed_at timestamptz, last_event_id bigint, init_task_id bigint, result bytea,
    timer_task_id bigint, timer_task_type task_type, timer_status task_status, timer_due_at timestamptz,
    waits json, event_count bigint, event_ids bigint[], occurred_at timestamptz[],
    payloads bytea[], format_versions integer[], event_metadata json[], task_ids bigint[],
    job_role json, state_version integer, timers json, replies json, broken_at timestamptz,
    failure_id text, failure_reason text
)
STABLE
BY INDEX
SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN QUERY
    SELECT i.number, p.is_whole, p.status, p.previous_status, coalesce(p.detail, p.end_reason),
        CASE WHEN p.is_whole THEN p.aux_state END, CASE WHEN p.is_whole THEN p.metadata END,
        p.corrupted_by, p.created_at, p.status_changed_at, p.last_event_id, p.init_task_id,
        CASE WHEN p.is_whole THEN p.result END,
        s.task_id, s.task_type, s.status, s.due_at,
        CASE WHEN p.is_whole AND (p.is_gated OR p.has_named_timers)
            THEN (
                SELECT g.waits
                FROM read_waits(
                    p_now, p_starvation_timeout, p_waits_max, ARRAY[i.slot], ARRAY[i.namespace],
                    ARRAY[i.process_id]) g
            ) ELSE w.waits END,
        r.last - r.first + 1,
        e.event_ids, e.occurred_at, e.payloads, e.format_versions, e.metadata, e.task_ids,
        -- Other reads do not pay for the lookups.
        CASE WHEN p.led_by IS NOT NULL OR p.leader_id IS NOT NULL THEN json_build_array(
            (
                SELECT json_build_array(j.waiting + j.ready + j.running, j.node_count)
                FROM jobs j
                WHERE (j.slot, j.namespace, j.process_id) = (i.slot, i.namespace, i.process_id)
            ),
            (
                SELECT json_build_array(n.namespace, n.process_id, n.name)
                FROM job_nodes n
                WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                    = (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
            )
        ) END,
        p.state_version,
        CASE WHEN p.has_named_timers THEN (
            SELECT json_agg(json_build_array(
                k.task_id, k.task_type, k.status, (extract(epoch FROM k.due_at) * 1000000)::bigint,
                t.timer_name
            ) ORDER BY k.due_at, k.task_id)
            FROM find_timers(i.slot, i.namespace, i.process_id) k
            JOIN tasks t
                ON (t.slot, t.namespace, t.process_id, t.task_id)
                    = (i.slot, i.namespace, i.process_id, k.task_id)
        ) END,
        CASE WHEN p.is_whole AND p.status <> 'finished' AND (p.has_asked OR p.has_reply_requests)
            THEN read_replies(p_waits_max, i.slot, i.namespace, i.process_id, p.init_task_id)
        END,
        CASE WHEN p.detail IS NOT NULL THEN p.broken_at END,
        CASE WHEN p.detail IS NOT NULL THEN p.failure_id END,
        CASE WHEN p.detail IS NOT NULL THEN p.failure_reason END
    FROM unnest(p_slot, p_namespace, p_process_id, p_after, p_limit, p_backward)
        WITH ORDINALITY
        AS i (slot, namespace, process_id, after, wanted, backward, number)
    -- OFFSET 0 keeps the items outside and the tables inside: whatever the planner believes of their
    -- sizes, it can only look up what an item names.
    CROSS JOIN LATERAL (
        SELECT p.*,
            octet_length(p.aux_state) + coalesce(octet_length(p.result), 0)
                + coalesce(pg_column_size(p.metadata), 0) <= p_state_bytes_max AS is_whole
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
        OFFSET 0
    ) p
    LEFT JOIN LATERAL (
        SELECT s.task_id, s.task_type, s.status, s.due_at, s.attempt
        FROM schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (i.slot, i.namespace, i.process_id)
            AND s.task_type IN ('timeout', 'remove')
        UNION ALL
        SELECT g.task_id, g.task_type,
            CASE WHEN g.state = 'process' THEN 'blocked' ELSE 'waiting' END::task_status, g.run_at,
            g.attempt
        FROM gated g
        WHERE p.is_gated
            AND (g.slot, g.namespace, g.process_id) = (i.slot, i.namespace, i.process_id)
            AND g.task_type IN ('timeout', 'remove')
            AND g.state <> 'available'
        UNION ALL
        SELECT d.task_id, d.task_type, 'blocked', d.due_at, d.attempt
        FROM held d
        WHERE p.status = 'error'
            AND (d.slot, d.namespace, d.process_id) = (i.slot, i.namespace, i.process_id)
            AND d.task_type IN ('timeout', 'remove')
        ORDER BY due_at, task_id
        LIMIT 1
    ) s ON true
    -- Event ids have no gaps, so a range is known before it is read. What lies behind the last event
    -- is cut off first: the sums cannot overflow.
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN i.backward
                THEN greatest(b.last - coalesce(i.wanted, b.last) + 1, 1)
                ELSE least(i.after, p.last_event_id) + 1
            END AS first,
            CASE WHEN i.backward
                THEN b.last
                ELSE least(p.last_event_id,
                    least(i.after, p.last_event_id) + coalesce(i.wanted, p.last_event_id))
            END AS last
        FROM (
            SELECT CASE WHEN i.after = 0 THEN p.last_event_id
                ELSE least(i.after - 1, p.last_event_id) END AS last
        ) b
    ) r
    CROSS JOIN LATERAL (
        SELECT json_agg(json_build_array(
            w.task_id, w.task_type, w.status, (extract(epoch FROM w.due_at) * 1000000)::bigint,
            w.attempt, w.replica_id, t.error_code, t.error_reason, t.error_message,
            t.error_rejected, t.error_metadata, coalesce(p_now, now()) >= w.due_at,
            (extract(epoch FROM t.created_at) * 1000000)::bigint,
            (extract(epoch FROM w.leased_at) * 1000000)::bigint,
            (extract(epoch FROM w.expires_at) * 1000000)::bigint,
            CASE WHEN p.status = 'error' AND w.task_type <> 'repair'
                    AND w.task_id IS DISTINCT FROM p.corrupted_by
                THEN (extract(epoch FROM p.status_changed_at) * 1000000)::bigint END
        ) ORDER BY w.rank, w.task_id) AS waits
        FROM (
            SELECT u.*
            FROM (
                SELECT h.task_id, h.task_type, 'running'::task_status AS status,
                    NULL::timestamptz AS due_at, h.attempt, h.replica_id, h.leased_at, h.expires_at,
                    0 AS rank
                FROM running h
                WHERE (h.slot, h.namespace, h.process_id) = (i.slot, i.namespace, i.process_id)
                UNION ALL
                -- A crowd before one process is not read to its end.
                (SELECT c.task_id, c.task_type, c.status, c.due_at, c.attempt, NULL, NULL, NULL, 1
                FROM schedule c
                WHERE (c.slot, c.namespace, c.process_id) = (i.slot, i.namespace, i.process_id)
                    AND c.task_type NOT IN ('timeout', 'remove')
                ORDER BY c.slot, c.namespace, c.process_id, c.task_id
                LIMIT p_waits_max)
                UNION ALL
                (SELECT d.task_id, d.task_type, 'blocked', d.due_at, d.attempt, NULL, NULL, NULL, 1
                FROM held d
                WHERE p.status = 'error'
                    AND (d.slot, d.namespace, d.process_id) = (i.slot, i.namespace, i.process_id)
                    AND d.task_type NOT IN ('timeout', 'remove')
                ORDER BY d.slot, d.namespace, d.process_id, d.task_id
                LIMIT p_waits_max)
                UNION ALL
                SELECT s.task_id, s.task_type, s.status, s.due_at, s.attempt, NULL, NULL, NULL, 2
                WHERE s.task_id IS NOT NULL
            ) u
            ORDER BY u.rank, u.task_id
            LIMIT p_waits_max
        ) w
        CROSS JOIN LATERAL (
            SELECT t.error_code, t.error_reason, t.error_message, t.error_rejected, t.error_metadata,
                t.created_at
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (i.slot, i.namespace, i.process_id, w.task_id)
            OFFSET 0
        ) t
        WHERE p.is_whole AND NOT p.is_gated AND NOT p.has_named_timers
    ) w
    CROSS JOIN LATERAL (
        SELECT array_agg(e.event_id) AS event_ids, array_agg(e.occurred_at) AS occurred_at,
            array_agg(e.payload) AS payloads, array_agg(e.format_version) AS format_versions,
            array_agg(e.metadata) AS metadata, array_agg(e.task_id) AS task_ids
        FROM (
            SELECT e.event_id, e.occurred_at, e.payload, e.format_version, e.metadata, e.task_id,
                sum(octet_length(e.payload) + coalesce(pg_column_size(e.metadata), 0))
                    OVER (ORDER BY e.event_id ROWS UNBOUNDED PRECEDING) AS size
            FROM events e
            WHERE (e.slot, e.namespace, e.process_id) = (i.slot, i.namespace, i.process_id)
                AND e.event_id BETWEEN r.first AND r.last
        ) e
        WHERE e.size <= p_event_bytes_max
            AND r.last - r.first < p_events_max
            AND p.is_whole
    ) e;
END;
$$;
