-- name: beat
-- Renews all leases of a replica at once; enters it again if its row was deleted meanwhile. No row: the
-- database has another lineage by now. Returns
-- the instant of the heartbeat, the names of the paused namespaces (null if there are none), the revision
-- of bindings and tokens, and what the other live replicas tell of rates that they share. A beat before it whose commit waits for a synchronous standby keeps
-- the row locked: this one fails after a second, so that such beats do not pile up.
INSERT INTO progressor.replicas AS r
    (replica_id, name, version, functions, started_at, heartbeat_at, draining,
    lease_timeout, step_count, caller_count, clock_offset, facts, rates)
SELECT %(replica_id)s, %(name)s, %(version)s, %(functions)s,
    coalesce(%(now)s, clock_timestamp()), coalesce(%(now)s, clock_timestamp()), %(draining)s,
    %(lease_timeout)s, %(step_count)s, %(caller_count)s, %(clock_offset)s, %(facts)s, %(rates)s
FROM (SELECT set_config('lock_timeout', '1s', true) AS patience OFFSET 0) AS bound
JOIN progressor.lineage l ON l.epoch = %(epoch)s
WHERE bound.patience IS NOT NULL
ON CONFLICT (replica_id) DO UPDATE
SET heartbeat_at = excluded.heartbeat_at,
    draining = excluded.draining,
    lease_timeout = excluded.lease_timeout,
    step_count = excluded.step_count,
    caller_count = excluded.caller_count,
    clock_offset = excluded.clock_offset,
    facts = excluded.facts,
    rates = excluded.rates
RETURNING r.heartbeat_at, (
    SELECT array_agg(n.name)
    FROM progressor.namespaces n
    WHERE n.paused_at IS NOT NULL
), (
    SELECT a.revision
    FROM progressor.access_revision a
), (
    SELECT array_agg(o.rates)
    FROM progressor.replicas o
    WHERE o.replica_id <> r.replica_id
        AND NOT o.draining
        AND o.heartbeat_at >= r.heartbeat_at - coalesce(o.lease_timeout, r.lease_timeout)
)

-- name: retire_replica
-- Takes a replica off the list at the end of its drain; what it still leases is a zombie at once.
DELETE FROM progressor.replicas
WHERE replica_id = %(replica_id)s

-- name: delete_dead_replicas
-- Deletes rows of replicas that have been silent for long; what they leased was collected long ago.
DELETE FROM progressor.replicas
WHERE heartbeat_at < coalesce(%(now)s, clock_timestamp()) - %(retention)s

-- name: list_replicas
-- Reads replicas in the order of their ids, and how many leases each holds. Reads the whole of
-- running, as find_zombies does.
SELECT p.replica_id, p.name, p.version, p.functions, p.started_at, p.heartbeat_at,
    clock.now - p.heartbeat_at AS heartbeat_age,
    coalesce(p.lease_timeout, %(lease_timeout)s) AS lease_timeout, p.draining, p.step_count,
    p.caller_count, p.clock_offset, coalesce(held.lease_count, 0) AS lease_count
FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS now) clock
CROSS JOIN progressor.replicas p
LEFT JOIN (
    SELECT r.replica_id, count(*) AS lease_count
    FROM progressor.running r
    GROUP BY r.replica_id
) held USING (replica_id)
WHERE p.replica_id > %(after)s
ORDER BY p.replica_id
LIMIT %(limit)s

-- name: read_facts
-- Reads what the replicas told with their last heartbeats, the latest first, so that a limit leaves
-- out the dead before the living; a row of nulls behind the instant where there is none. The instant
-- is now() and not the clock's: who has leased anything before it has a heartbeat in the snapshot,
-- which is taken after it.
SELECT moment.now, p.replica_id, p.name, p.version, p.functions, p.started_at, p.heartbeat_at,
    moment.now - p.heartbeat_at AS heartbeat_age,
    coalesce(p.lease_timeout, %(lease_timeout)s) AS lease_timeout, p.draining,
    p.step_count, p.caller_count, p.clock_offset, p.facts AS loads, p.rates
FROM (SELECT coalesce(%(now)s, now()) AS now) moment
LEFT JOIN progressor.replicas p ON true
ORDER BY p.heartbeat_at DESC
LIMIT %(limit)s

-- name: find_zombies
-- Finds leases whose replica is silent or gone, whose step overran, or which this replica holds and
-- does not know of (an answer was lost on the way). Reads the whole of running: it holds
-- only what is in flight. Of leases taken before %(jumped_at)s the step may take %(jump)s longer: the clock
-- has gone ahead by that.
-- Locks: none; settling them is fenced by their tokens.
SELECT z.slot, z.namespace, z.process_id, z.task_id, z.task_type, z.attempt, z.token,
    z.leased_at AS started_at, t.tried_for, z.replica_id, z.now AS found_at, z.cause, t.trace_context,
    CASE WHEN p.led_by IS NOT NULL OR p.leader_id IS NOT NULL OR p.job_options IS NOT NULL THEN
        json_build_array(
            p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options)
    END AS part,
    p.corrupted_by AS broken_by
FROM (
    SELECT r.*, clock.now,
        CASE
            WHEN p.replica_id IS NULL
                OR p.heartbeat_at < clock.now - coalesce(p.lease_timeout, %(lease_timeout)s)
            THEN 'silent'
            WHEN r.expires_at < clock.now - CASE
                WHEN r.leased_at < %(jumped_at)s THEN %(jump)s ELSE interval '0' END
            THEN 'overrun'
            ELSE 'unknown'
        END AS cause
    FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS now) clock
    CROSS JOIN progressor.running r
    LEFT JOIN progressor.replicas p USING (replica_id)
    WHERE p.replica_id IS NULL
        OR p.heartbeat_at < clock.now - coalesce(p.lease_timeout, %(lease_timeout)s)
        OR r.expires_at < clock.now - CASE
            WHEN r.leased_at < %(jumped_at)s THEN %(jump)s ELSE interval '0' END
        OR (r.replica_id = %(replica_id)s
            AND r.leased_at < clock.now - %(stray_age)s
            AND r.token <> ALL (%(known)s::bigint[]))
    ORDER BY r.leased_at
    LIMIT %(limit)s
) z
-- A look-up per lease, whatever the planner believes of how many there are.
CROSS JOIN LATERAL (
    SELECT t.tried_for, t.trace_context
    FROM progressor.tasks t
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (z.slot, z.namespace, z.process_id, z.task_id)
    LIMIT 1
) t
CROSS JOIN LATERAL (
    SELECT p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options,
        p.corrupted_by
    FROM progressor.processes p
    WHERE (p.slot, p.namespace, p.process_id) = (z.slot, z.namespace, z.process_id)
    LIMIT 1
) p
ORDER BY z.leased_at
