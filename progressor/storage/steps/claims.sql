-- name: find_upcoming
-- Finds tasks due soon that this replica has set, or that a replica has set which is gone.
-- Locks: none; a claim decides.
SELECT s.slot, n.namespace, s.process_id, s.task_id, s.due_at, clock.now
FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS now) clock
CROSS JOIN unnest(
    %(namespace)s::text[], %(limit)s::integer[], %(after_at)s::timestamptz[], %(after_id)s::bigint[]
) AS n (namespace, room, after_at, after_id)
CROSS JOIN LATERAL (
    SELECT s.slot, s.process_id, s.task_id, s.due_at
    FROM progressor.schedule s
    WHERE s.namespace = n.namespace
        AND s.status = 'waiting'
        AND s.due_at > clock.now
        AND s.due_at <= clock.now + %(horizon)s
        AND s.due_at >= coalesce(n.after_at, '-infinity')
        AND (n.after_at IS NULL OR (s.due_at, s.task_id) > (n.after_at, n.after_id))
        AND (s.replica_id = %(replica_id)s OR NOT EXISTS (
            SELECT FROM progressor.replicas r
            WHERE r.replica_id = s.replica_id
                AND r.heartbeat_at >= clock.now - coalesce(r.lease_timeout, %(lease_timeout)s)
        ))
    ORDER BY s.namespace, s.due_at, s.task_id
    LIMIT n.room
) s

-- name: find_overdue
-- Finds the first task of each namespace that was not claimed in time, not looking at what was due before `since`: a
-- look before slots are reserved, since in a healthy engine there is none.
-- Locks: none.
SELECT n.namespace, s.due_at, late.until
-- Read once, by a SELECT of its own: no index is searched for what changes by the row.
FROM (SELECT coalesce(%(now)s, clock_timestamp()) - %(overdue)s AS until OFFSET 0) late
CROSS JOIN unnest(%(namespace)s::text[], %(since)s::timestamptz[]) AS n (namespace, since)
LEFT JOIN LATERAL (
    SELECT s.due_at
    FROM progressor.schedule s
    WHERE s.namespace = n.namespace
        AND s.status = 'waiting'
        AND s.due_at <= late.until
        AND s.due_at >= coalesce(n.since, '-infinity')
    ORDER BY s.namespace, s.due_at
    LIMIT 1
) s ON true
