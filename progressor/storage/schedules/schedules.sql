-- name: create_schedule
-- Makes a schedule, unless there is one. The namespace cannot be deleted meanwhile.
WITH changed AS (
    INSERT INTO progressor.schedules (
        slot, namespace, schedule_id, cron, time_zone, every, anchor, jitter, start_at, end_at,
        overlap_policy, catch_up_window, target, target_id, args, caller_context, metadata,
        history_after, history_limit, history_backward, constraints, fingerprint, paused, note,
        created_at, updated_at, next_instant, next_at
    )
    SELECT %(slot)s, n.name, %(schedule_id)s, %(cron)s, %(time_zone)s, %(every)s, %(anchor)s,
        %(jitter)s, %(start_at)s, %(end_at)s, %(overlap_policy)s::progressor.overlap_policy,
        %(catch_up_window)s, %(target)s, %(target_id)s, %(args)s, %(caller_context)s::json,
        %(metadata)s::jsonb, %(history_after)s, %(history_limit)s, %(history_backward)s,
        %(constraints)s::json, %(fingerprint)s, %(paused)s, %(note)s, %(now)s, %(now)s,
        %(next_instant)s, %(next_at)s
    FROM (
        SELECT name
        FROM progressor.namespaces
        WHERE name = %(namespace)s
        FOR KEY SHARE
    ) n
    ON CONFLICT DO NOTHING
    RETURNING schedules.revision, schedules AS schedule
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, NULL, progressor.describe_schedule(c.schedule)
    FROM changed c
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT c.revision
FROM changed c;

-- name: update_schedule
-- Replaces what a schedule does and when. Where its times are as before, so is what is due next.
WITH changed AS (
    UPDATE progressor.schedules s
    SET cron = %(cron)s, time_zone = %(time_zone)s, every = %(every)s, anchor = %(anchor)s,
        jitter = %(jitter)s, start_at = %(start_at)s, end_at = %(end_at)s,
        overlap_policy = %(overlap_policy)s::progressor.overlap_policy,
        catch_up_window = %(catch_up_window)s, target = %(target)s, target_id = %(target_id)s,
        args = %(args)s, caller_context = %(caller_context)s::json, metadata = %(metadata)s::jsonb,
        history_after = %(history_after)s, history_limit = %(history_limit)s,
        history_backward = %(history_backward)s, constraints = %(constraints)s::json,
        fingerprint = %(fingerprint)s, revision = s.revision + 1, updated_at = %(now)s,
        next_instant = CASE
            WHEN s.paused THEN NULL WHEN %(is_same)s THEN s.next_instant ELSE %(next_instant)s END,
        next_at = CASE WHEN s.paused THEN NULL WHEN %(is_same)s THEN s.next_at ELSE %(next_at)s END
    WHERE (s.slot, s.namespace, s.schedule_id) = (%(slot)s, %(namespace)s, %(schedule_id)s)
        AND s.revision = %(revision)s
    RETURNING s.revision, s AS schedule
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, progressor.describe_schedule(o), progressor.describe_schedule(c.schedule)
    FROM changed c
    JOIN progressor.schedules o ON (o.slot, o.namespace, o.schedule_id)
        = (%(slot)s, %(namespace)s, %(schedule_id)s)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT c.revision
FROM changed c;

-- name: pause_schedule
WITH changed AS (
    UPDATE progressor.schedules s
    SET paused = true, note = %(note)s, revision = s.revision + 1, updated_at = %(now)s,
        next_instant = NULL, next_at = NULL
    WHERE (s.slot, s.namespace, s.schedule_id) = (%(slot)s, %(namespace)s, %(schedule_id)s)
        AND s.revision = %(revision)s
    RETURNING s.revision, s AS schedule
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, progressor.describe_schedule(o), progressor.describe_schedule(c.schedule)
    FROM changed c
    JOIN progressor.schedules o ON (o.slot, o.namespace, o.schedule_id)
        = (%(slot)s, %(namespace)s, %(schedule_id)s)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT c.revision
FROM changed c;

-- name: resume_schedule
-- One that is not paused keeps what is due next.
WITH changed AS (
    UPDATE progressor.schedules s
    SET paused = false, note = %(note)s, revision = s.revision + 1, updated_at = %(now)s,
        next_instant = CASE WHEN s.paused THEN %(next_instant)s ELSE s.next_instant END,
        next_at = CASE WHEN s.paused THEN %(next_at)s ELSE s.next_at END
    WHERE (s.slot, s.namespace, s.schedule_id) = (%(slot)s, %(namespace)s, %(schedule_id)s)
        AND s.revision = %(revision)s
    RETURNING s.revision, s AS schedule
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, progressor.describe_schedule(o), progressor.describe_schedule(c.schedule)
    FROM changed c
    JOIN progressor.schedules o ON (o.slot, o.namespace, o.schedule_id)
        = (%(slot)s, %(namespace)s, %(schedule_id)s)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT c.revision
FROM changed c;

-- name: read_schedules
-- One page of schedules, in the order of their ids, without args; or one schedule with its args.
SELECT s.slot, s.namespace, s.schedule_id, s.cron, s.time_zone, s.every, s.anchor, s.jitter,
    s.start_at, s.end_at, s.overlap_policy, s.catch_up_window, s.target, s.target_id,
    CASE WHEN %(schedule_id)s::text IS NOT NULL THEN s.args END AS args,
    s.caller_context, s.metadata, s.history_after, s.history_limit, s.history_backward,
    s.constraints, s.paused, s.note, s.revision, s.created_at, s.updated_at,
    s.next_instant AS upcoming_instant, s.next_at AS upcoming_due_at,
    s.started_count, s.skipped_count, s.missed_count, s.refused_count
FROM progressor.schedules s
WHERE s.namespace = %(namespace)s
    AND s.schedule_id > %(after)s
    AND (%(schedule_id)s::text IS NULL OR s.schedule_id = %(schedule_id)s)
ORDER BY s.namespace, s.schedule_id
LIMIT %(limit)s;

-- name: find_next_due
-- Seconds until the next schedule is due that no replica is working on, but for those of paused namespaces; no row
-- if there is none. As in claim_schedules.sql, those are not read.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
        EXISTS (SELECT FROM progressor.namespaces n WHERE n.paused_at IS NOT NULL) AS is_paused
)
SELECT extract(epoch FROM d.next_at - (SELECT c.now FROM clock c))::double precision
FROM (
    (
        SELECT s.next_at
        FROM progressor.schedules s
        WHERE NOT (SELECT c.is_paused FROM clock c) AND s.next_at IS NOT NULL
            AND (s.claimed_until IS NULL OR s.claimed_until <= (SELECT c.now FROM clock c))
        ORDER BY s.next_at
        LIMIT 1
    )
    UNION ALL
    (
        SELECT s.next_at
        FROM progressor.namespaces n
        CROSS JOIN LATERAL (
            SELECT s.next_at
            FROM progressor.schedules s
            WHERE s.next_at IS NOT NULL
                AND (s.namespace, s.next_at) >= (n.name, '-infinity'::timestamptz)
                AND (s.namespace, s.next_at) <= (n.name, 'infinity'::timestamptz)
                AND (s.claimed_until IS NULL OR s.claimed_until <= (SELECT c.now FROM clock c))
            ORDER BY s.namespace, s.next_at
            LIMIT 1
        ) s
        WHERE (SELECT c.is_paused FROM clock c) AND n.paused_at IS NULL
        ORDER BY s.next_at
        LIMIT 1
    )
) d
ORDER BY d.next_at
LIMIT 1;

-- name: find_run_by_key
-- The instant of a trigger that was asked for before.
SELECT f.instant
FROM progressor.schedule_runs f
WHERE (f.slot, f.namespace, f.schedule_id) = (%(slot)s, %(namespace)s, %(schedule_id)s)
    AND f.idempotency_key = %(idempotency_key)s;

-- name: cancel_run
-- Fenced by the state: who has seen it end in another way was first.
UPDATE progressor.schedule_runs f
SET state = 'cancelled', ended_at = coalesce(%(now)s::timestamptz, clock_timestamp())
WHERE (f.slot, f.namespace, f.schedule_id, f.instant)
    = (%(slot)s, %(namespace)s, %(schedule_id)s, %(instant)s)
    AND f.state = 'running'
RETURNING f.instant;
