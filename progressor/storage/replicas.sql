-- name: draw_replica_id
-- Draws the id of a replica that starts.
SELECT nextval('progressor.replica_ids')

-- name: beat
-- Renews all leases of a replica at once; enters it again if its row was deleted meanwhile.
INSERT INTO progressor.replicas AS r
    (replica_id, name, version, functions, started_at, heartbeat_at, draining)
VALUES (%(replica_id)s, %(name)s, %(version)s, %(functions)s,
    coalesce(%(now)s, clock_timestamp()), coalesce(%(now)s, clock_timestamp()), %(draining)s)
ON CONFLICT (replica_id) DO UPDATE
SET heartbeat_at = excluded.heartbeat_at, draining = excluded.draining

-- name: retire_replica
-- Takes a replica off the list at the end of its drain; what it still leases is a zombie at once.
DELETE FROM progressor.replicas
WHERE replica_id = %(replica_id)s

-- name: delete_dead_replicas
-- Deletes rows of replicas that have been silent for long; what they leased was collected long ago.
DELETE FROM progressor.replicas
WHERE heartbeat_at < coalesce(%(now)s, clock_timestamp()) - %(retention)s

-- name: list_replicas
SELECT replica_id, name, version, functions, started_at, heartbeat_at, draining
FROM progressor.replicas
ORDER BY replica_id
LIMIT %(limit)s

-- name: find_zombies
-- Finds leases whose replica is silent or gone, whose step overran, or which this replica holds and
-- does not know of (an answer was lost on the way). Reads the whole of running: it holds
-- only what is in flight.
-- Locks: none; settling them is fenced by their tokens.
SELECT z.slot, z.namespace, z.process_id, z.task_id, z.task_type, z.attempt, z.token,
    t.first_started_at, z.replica_id, z.now, z.cause
FROM (
    SELECT r.*, clock.now,
        CASE
            WHEN p.replica_id IS NULL OR p.heartbeat_at < clock.now - %(lease_timeout)s THEN 'silent'
            WHEN r.expires_at < clock.now THEN 'overrun'
            ELSE 'unknown'
        END AS cause
    FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS now) clock
    CROSS JOIN progressor.running r
    LEFT JOIN progressor.replicas p USING (replica_id)
    WHERE p.replica_id IS NULL
        OR p.heartbeat_at < clock.now - %(lease_timeout)s
        OR r.expires_at < clock.now
        OR (r.replica_id = %(replica_id)s
            AND r.leased_at < clock.now - %(lease_timeout)s
            AND r.token <> ALL (%(known)s::bigint[]))
    ORDER BY r.leased_at
    LIMIT %(limit)s
) z
-- A look-up per lease, whatever the planner believes of how many there are.
CROSS JOIN LATERAL (
    SELECT t.first_started_at
    FROM progressor.tasks t
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (z.slot, z.namespace, z.process_id, z.task_id)
    LIMIT 1
) t
ORDER BY z.leased_at
