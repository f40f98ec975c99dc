-- Claims tasks that have been due for at least p_overdue seconds, up to p_room of each namespace: alternately the
-- oldest task and the oldest that is not a timer, which comes first if p_requests_first. So a request or a reply waits
-- for earlier ones but not for many timers, and half of the slots are assigned by age alone, so that nothing starves.
-- Where p_requests_only is true, timers are left alone; null: nowhere. What was due before p_since is not looked at;
-- null: nothing was. Dead rows may be in the way there.
-- With p_wait, it waits for locked processes, since no later scan looks for their tasks. Otherwise they are left to
-- the next scan, and the search continues behind them, past at most 1,000 tasks of a namespace.
-- Locks: processes in key order, SKIP LOCKED unless p_wait, and then also schedule and tasks, which others may hold
-- locked without the process; then as claim_locked.
-- Returns: as claim_locked.
CREATE FUNCTION claim_due(
    p_now            timestamptz,
    p_replica_id     bigint,
    p_grace          double precision,
    p_overdue        double precision,
    p_wait           boolean,
    p_namespace      text[],
    p_room           integer[],
    p_requests_first boolean[],
    p_expires_after  double precision[],
    p_requests_only  boolean[],
    p_since          timestamptz[]
)
RETURNS SETOF claimed
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now           timestamptz := coalesce(p_now, clock_timestamp());
    v_slot          smallint[];
    v_namespace     text[];
    v_process_id    text[];
    v_task_id       bigint[];
    v_expires_after double precision[];
    v_number        integer[];  -- of the namespace, from 1
    v_place         bigint[];   -- among the due tasks of a namespace
    v_found         integer[];  -- numbers of namespaces, as they were found
    v_passed        integer[] := array_fill(0, ARRAY[cardinality(p_namespace)]);
    v_passed_next   integer[];
BEGIN
    LOOP
        SELECT array_agg(s.slot ORDER BY s.slot, n.namespace, s.process_id),
            array_agg(n.namespace ORDER BY s.slot, n.namespace, s.process_id),
            array_agg(s.process_id ORDER BY s.slot, n.namespace, s.process_id),
            array_agg(s.task_id ORDER BY s.slot, n.namespace, s.process_id),
            array_agg(n.expires_after ORDER BY s.slot, n.namespace, s.process_id),
            array_agg(n.number::integer ORDER BY s.slot, n.namespace, s.process_id),
            array_agg(s.place ORDER BY s.slot, n.namespace, s.process_id)
        INTO v_slot, v_namespace, v_process_id, v_task_id, v_expires_after, v_found, v_place
        FROM unnest(
                p_namespace, p_room, p_requests_first, p_expires_after, v_passed, p_requests_only,
                p_since)
            WITH ORDINALITY
            AS n (
                namespace, room, requests_first, expires_after, passed, requests_only, since, number)
        CROSS JOIN LATERAL (
            SELECT d.slot, d.process_id, d.task_id, min(d.place) AS place
            FROM (
                SELECT a.slot, a.process_id, a.task_id,
                    2 * row_number() OVER (ORDER BY a.due_at) + n.requests_first::integer AS place
                FROM (
                    SELECT s.slot, s.process_id, s.task_id, s.due_at
                    FROM schedule s
                    WHERE s.namespace = n.namespace
                        AND s.status = 'waiting'
                        AND s.due_at <= v_now - make_interval(secs => p_overdue)
                        AND s.due_at >= coalesce(n.since, '-infinity')
                        AND n.requests_only IS NOT TRUE
                    ORDER BY s.namespace, s.due_at
                    LIMIT n.room + n.passed
                ) a
                UNION ALL
                SELECT r.slot, r.process_id, r.task_id,
                    2 * row_number() OVER (ORDER BY r.due_at) + (NOT n.requests_first)::integer
                FROM (
                    -- Nothing about the status, by which schedule_due would apply: it leads past all
                    -- timers that are due. Requests are never blocked.
                    SELECT s.slot, s.process_id, s.task_id, s.due_at
                    FROM schedule s
                    WHERE s.namespace = n.namespace
                        AND s.task_type NOT IN ('timeout', 'remove')
                        AND s.due_at <= v_now - make_interval(secs => p_overdue)
                        AND s.due_at >= coalesce(n.since, '-infinity')
                    ORDER BY s.namespace, s.due_at
                    LIMIT n.room + n.passed
                ) r
            ) d
            GROUP BY d.slot, d.process_id, d.task_id
            ORDER BY min(d.place)
            LIMIT n.room + n.passed
        ) s;
        IF v_slot IS NULL THEN
            RETURN;
        END IF;

        IF p_wait THEN
            PERFORM
            FROM (
                SELECT i.slot, i.namespace, i.process_id
                FROM unnest(v_slot, v_namespace, v_process_id) AS i (slot, namespace, process_id)
                ORDER BY i.slot, i.namespace, i.process_id
            ) i
            CROSS JOIN LATERAL (
                SELECT
                FROM processes p
                WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
                FOR NO KEY UPDATE
            ) p;
            EXIT;
        END IF;

        WITH locked AS MATERIALIZED (
            SELECT i.*
            FROM (
                SELECT i.*
                FROM unnest(
                        v_slot, v_namespace, v_process_id, v_task_id, v_expires_after, v_found, v_place)
                    AS i (slot, namespace, process_id, task_id, expires_after, number, place)
                ORDER BY i.slot, i.namespace, i.process_id
            ) i
            CROSS JOIN LATERAL (
                SELECT
                FROM processes p
                WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) p
            CROSS JOIN LATERAL (
                SELECT
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                    = (i.slot, i.namespace, i.process_id, i.task_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) s
        ),
        free AS MATERIALIZED (
            SELECT l.task_id
            FROM locked l
            CROSS JOIN LATERAL (
                SELECT
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (l.slot, l.namespace, l.process_id, l.task_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) t
        ),
        taken AS (
            SELECT l.*, row_number() OVER (PARTITION BY l.number ORDER BY l.place) AS turn
            FROM locked l
            WHERE l.task_id IN (SELECT f.task_id FROM free f)
                OR NOT EXISTS (
                    SELECT FROM tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (l.slot, l.namespace, l.process_id, l.task_id)
                )
        )
        SELECT array_agg(t.slot), array_agg(t.namespace), array_agg(t.process_id),
            array_agg(t.task_id), array_agg(t.expires_after), array_agg(t.number)
        INTO v_slot, v_namespace, v_process_id, v_task_id, v_expires_after, v_number
        FROM taken t
        WHERE t.turn <= p_room[t.number];

        SELECT array_agg(
            CASE
                WHEN f.found_count = p_room[f.number] + v_passed[f.number]
                    AND f.taken_count < p_room[f.number]
                THEN least(1000, 4 * (f.found_count - f.taken_count))
                ELSE v_passed[f.number]
            END ORDER BY f.number)
        INTO v_passed_next
        FROM (
            SELECT n.number,
                cardinality(array_positions(v_found, n.number)) AS found_count,
                coalesce(cardinality(array_positions(v_number, n.number)), 0) AS taken_count
            FROM generate_series(1, cardinality(p_namespace)) AS n (number)
        ) f;
        EXIT WHEN v_passed_next = v_passed;
        v_passed := v_passed_next;
    END LOOP;

    IF v_slot IS NOT NULL THEN
        RETURN QUERY
        SELECT * FROM claim_locked(
            coalesce(p_now, clock_timestamp()), p_replica_id, p_grace, v_slot, v_namespace,
            v_process_id, v_task_id, v_expires_after, 0);
    END IF;
END;
$$;
