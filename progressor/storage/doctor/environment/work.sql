-- Who serves, what is due, what waits for what. Nothing in here locks or writes; the clock is
-- PostgreSQL's. Columns of replicas that a release before 0004 has not, and of namespaces before 0032, are read
-- through JSON: absent, they are null.

-- name: read_replicas
SELECT r.replica_id, r.name, r.version, r.functions, r.draining,
    extract(epoch FROM clock_timestamp() - r.heartbeat_at)::double precision AS silent_for,
    extract(epoch FROM (to_jsonb(r) ->> 'lease_timeout')::interval)::double precision
        AS lease_timeout,
    (to_jsonb(r) ->> 'clock_offset')::double precision AS clock_offset,
    (to_jsonb(r) ->> 'step_count')::integer AS step_count
FROM progressor.replicas r
ORDER BY r.replica_id

-- name: read_processors
-- For how many seconds each replica has not reached the processor of a namespace; null: it has.
SELECT f.key AS namespace, r.replica_id, (f.value ->> 2)::double precision AS unreachable_for
FROM progressor.replicas r
CROSS JOIN LATERAL jsonb_each(nullif(to_jsonb(r) -> 'facts', 'null')) f
ORDER BY f.key, r.replica_id

-- name: read_large_steps
-- The largest step of late of each namespace, as the replicas told with their last heartbeats: those
-- that come near what their processors take. The nearest come first.
SELECT f.key AS namespace, f.value -> 7 ->> 0 AS process_id,
    (f.value -> 7 ->> 1)::bigint AS size_bytes, (f.value -> 7 ->> 2)::bigint AS limit_bytes,
    extract(epoch FROM clock_timestamp() - r.heartbeat_at)::double precision AS silent_for
FROM progressor.replicas r
CROSS JOIN LATERAL jsonb_each(nullif(to_jsonb(r) -> 'facts', 'null')) f
WHERE jsonb_typeof(f.value -> 7) = 'array'
ORDER BY (f.value -> 7 ->> 1)::numeric / (f.value -> 7 ->> 2)::numeric DESC
LIMIT %(limit)s

-- name: read_backlog
-- Per namespace: what is due, how long the oldest has been, what is leased, how much may be.
-- By schedule_due; counting stops at counted_max.
SELECT n.name AS namespace,
    coalesce((n.config ->> 'worker_count_max')::integer, %(worker_count_max)s) AS worker_count_max,
    due.count AS due_count,
    extract(epoch FROM clock.now - due.oldest_at)::double precision AS overdue_for,
    coalesce(leases.count, 0) AS leased_count, to_jsonb(n) ->> 'paused_at' IS NOT NULL AS is_paused
FROM (SELECT clock_timestamp() AS now) clock
CROSS JOIN progressor.namespaces n
CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(d.due_at) AS oldest_at
    FROM (
        SELECT s.due_at
        FROM progressor.schedule s
        WHERE s.namespace = n.name AND s.status = 'waiting' AND s.due_at <= clock.now
        ORDER BY s.namespace, s.due_at
        LIMIT %(counted_max)s
    ) d
) due
LEFT JOIN (
    SELECT r.namespace, count(*) AS count
    FROM progressor.running r
    GROUP BY r.namespace
) leases ON leases.namespace = n.name
ORDER BY overdue_for DESC NULLS LAST, n.name

-- name: read_paused
-- The paused namespaces, the longest first.
SELECT n.name AS namespace, p.pause ->> 'pause_reason' AS reason,
    p.pause ->> 'pause_author' AS author,
    extract(epoch FROM clock_timestamp() - (p.pause ->> 'paused_at')::timestamptz)::double precision
        AS paused_for
FROM progressor.namespaces n
CROSS JOIN LATERAL to_jsonb(n) AS p (pause)
WHERE p.pause ->> 'paused_at' IS NOT NULL
ORDER BY paused_for DESC, n.name

-- name: read_long_steps
-- Tasks leased for longer than long_step behind which others wait, the longest first.
SELECT r.namespace, r.process_id, r.task_id, r.task_type, r.attempt, r.replica_id,
    extract(epoch FROM clock.now - r.leased_at)::double precision AS leased_for,
    behind.count AS behind_count, count(*) OVER () AS count
FROM (SELECT clock_timestamp() AS now) clock
CROSS JOIN progressor.running r
CROSS JOIN LATERAL (
    SELECT count(*) AS count
    FROM progressor.schedule s
    WHERE (s.slot, s.namespace, s.process_id) = (r.slot, r.namespace, r.process_id)
        AND s.task_type NOT IN ('timeout', 'remove')
    OFFSET 0
) behind
WHERE r.leased_at < clock.now - %(long_step)s AND behind.count > 0
ORDER BY r.leased_at
LIMIT %(limit)s

-- name: read_lost_leases
-- Leases that should have been collected: past their end, or of a replica that is silent or gone, for
-- longer than uncollected. Reads the whole of running, as the replicas do each second.
SELECT l.namespace, l.process_id, l.task_id, l.task_type, l.replica_id, l.cause,
    extract(epoch FROM l.lost_for)::double precision AS lost_for, count(*) OVER () AS count
FROM (
    SELECT r.namespace, r.process_id, r.task_id, r.task_type, r.replica_id,
        CASE
            WHEN p.replica_id IS NULL THEN 'its replica is gone'
            WHEN r.expires_at < clock.now THEN 'its step overran'
            ELSE 'its replica is silent'
        END AS cause,
        -- A replica that is gone left no time of its death: its leases are younger than that.
        CASE
            WHEN p.replica_id IS NULL THEN clock.now - r.leased_at
            ELSE greatest(
                clock.now - r.expires_at,
                clock.now - p.heartbeat_at - coalesce(
                    (to_jsonb(p) ->> 'lease_timeout')::interval, %(lease_timeout)s))
        END AS lost_for
    FROM (SELECT clock_timestamp() AS now) clock
    CROSS JOIN progressor.running r
    LEFT JOIN progressor.replicas p USING (replica_id)
) l
WHERE l.lost_for > %(uncollected)s
ORDER BY l.lost_for DESC
LIMIT %(limit)s

-- name: read_broken
-- Per namespace: how many processes are in error, and how many of these are jobs that the engine
-- leads, or nodes of jobs. By processes_in_error; counting stops at counted_max.
SELECT n.name AS namespace, broken.count, broken.job_count
FROM progressor.namespaces n
CROSS JOIN LATERAL (
    SELECT count(*) AS count,
        count(*) FILTER (WHERE b.leader_id IS NOT NULL OR b.led_by = 'engine') AS job_count
    FROM (
        SELECT p.leader_id, p.led_by
        FROM progressor.processes p
        WHERE p.namespace = n.name COLLATE "POSIX" AND p.detail IS NOT NULL
        LIMIT %(counted_max)s
    ) b
) broken
WHERE broken.count > 0
ORDER BY broken.count DESC, n.name

-- name: read_retries
-- What waits for another attempt, and has used up a share of those it has.
SELECT s.namespace, s.process_id, s.task_id, s.task_type, s.attempt, policy.attempts_max,
    extract(epoch FROM s.due_at - clock_timestamp())::double precision AS due_in,
    count(*) OVER () AS count
FROM progressor.schedule s
JOIN progressor.namespaces n ON n.name = s.namespace
CROSS JOIN LATERAL (
    SELECT coalesce(
        (n.config -> 'retry_policies' -> s.task_type::text ->> 'attempts_max')::integer,
        (n.config -> 'retry_policy' ->> 'attempts_max')::integer,
        %(attempts_max)s) AS attempts_max
) policy
WHERE s.attempt > 0 AND s.attempt >= policy.attempts_max * %(share)s::double precision
ORDER BY s.attempt::double precision / policy.attempts_max DESC, s.task_id
LIMIT %(limit)s
