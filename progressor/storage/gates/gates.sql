-- name: list_gates
-- One page of gates, in the order of their keys, or one gate; and how many wait for each.
SELECT g.namespace, g.gate, g.capacity, g.held, w.waiting_count, g.revision, g.created_at, g.updated_at
FROM progressor.gates g
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS waiting_count
    FROM (
        SELECT
        FROM progressor.gate_queues l
        JOIN progressor.gated t ON (t.namespace, t.queue) = (l.namespace, l.queue)
        WHERE (l.namespace, l.waits_on) = (g.namespace, g.gate)
        LIMIT %(counted_max)s
    ) t
) w
WHERE g.namespace = %(namespace)s
    AND g.gate > %(after)s
    AND (%(gate)s::text IS NULL OR g.gate = %(gate)s)
ORDER BY g.namespace, g.gate
LIMIT %(limit)s;

-- name: gate_holders
-- Who holds a gate, the longest first.
SELECT h.process_id, h.task_id, h.held_at, h.hold, h.is_reserved
FROM progressor.gate_holders h
WHERE (h.namespace, h.gate) = (%(namespace)s, %(gate)s)
ORDER BY h.namespace, h.gate, h.held_at, h.task_id
LIMIT %(limit)s;

-- name: read_gate_queue
-- Who comes next through a gate, in order: who has waited for longer than the starvation timeout, then by
-- priority and age.
SELECT t.process_id, t.task_id, t.priority, t.ready_at AS since, t.gates,
    t.ready_at <= coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(starvation_timeout)s) AS is_aged
FROM progressor.gate_queues l
CROSS JOIN LATERAL (
    (
        SELECT a.*
        FROM progressor.gated a
        WHERE (a.namespace, a.queue) = (l.namespace, l.queue)
        ORDER BY a.namespace, a.queue, a.priority, a.task_id
        LIMIT %(limit)s
    )
    UNION
    (
        SELECT b.*
        FROM progressor.gated b
        WHERE (b.namespace, b.queue) = (l.namespace, l.queue)
            AND b.ready_at <= coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(starvation_timeout)s)
        ORDER BY b.namespace, b.queue, b.ready_at, b.task_id
        LIMIT %(limit)s
    )
) t
WHERE (l.namespace, l.waits_on) = (%(namespace)s, %(gate)s)
ORDER BY is_aged DESC, CASE WHEN t.ready_at
    <= coalesce(%(now)s::timestamptz, now()) - make_interval(secs => %(starvation_timeout)s) THEN t.ready_at END,
    t.priority, t.task_id
LIMIT %(limit)s;

-- name: find_upcoming
-- Tasks with constraints that wait for an instant which comes soon, and in how many seconds.
SELECT t.slot, t.namespace, t.process_id, t.task_id,
    greatest(0, extract(epoch FROM
        t.run_at - coalesce(%(now)s::timestamptz, clock_timestamp()))::double precision) AS seconds
FROM unnest(%(namespace)s::text[]) AS n (namespace)
CROSS JOIN LATERAL (
    SELECT g.slot, g.namespace, g.process_id, g.task_id, g.run_at
    FROM progressor.gated g
    WHERE g.namespace = n.namespace
        AND g.state = 'time'
        AND g.run_at <= coalesce(%(now)s::timestamptz, clock_timestamp()) + %(horizon)s::interval
    ORDER BY g.namespace, g.run_at
    LIMIT %(limit)s
) t;

-- name: find_lowered
-- Gates with holders that have to give way, none of which was sent back for a while.
SELECT g.namespace, g.gate
FROM progressor.gates g
WHERE g.lowered_at IS NOT NULL
    AND g.lowered_at <= coalesce(%(now)s::timestamptz, clock_timestamp()) - %(age)s::interval
    AND g.namespace = ANY (%(namespace)s::text[])
ORDER BY g.lowered_at
LIMIT %(limit)s;
