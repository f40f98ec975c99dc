-- The invariants of gates, in the form of invariants.sql. A transaction that decides about a gate, an order
-- or a queue holds its lock until the commit (priv/README.md, "Gates"), so these hold at any moment too. The
-- last three may be violated briefly: rows that were locked are reported to the replica, which processes them
-- in a separate transaction. The statements start from unfinished tasks with constraints, and from gates.

-- name: gates_count_their_holders
-- says: a gate counts as many holders as it has
-- Inserting or deleting a holder changes the count, under the lock of the gate.
SELECT n.namespace, '' AS process_id,
    concat('gate ', n.gate,
        CASE WHEN n.held IS NULL THEN ' does not exist' ELSE concat(' counts ', n.held) END,
        ', and has ', coalesce(n.count, 0), ' holders') AS detail
FROM (
    SELECT namespace, gate, g.held, h.count
    FROM progressor.gates g
    FULL JOIN (
        SELECT c.namespace, c.gate, count(*)
        FROM progressor.gate_holders c
        GROUP BY c.namespace, c.gate
    ) h USING (namespace, gate)
) n
WHERE n.held IS DISTINCT FROM coalesce(n.count, 0)

-- name: gates_are_within_their_capacity
-- says: a gate has no more holders than places, except for those that it had before its capacity was lowered
-- A capacity may be lowered below what is held; then no task enters until the holders fit again. Lowering
-- it reads the clock under the gate's lock; entering reads it before taking the lock.
SELECT h.namespace, h.process_id,
    concat('task ', h.task_id, ' came to hold gate ', h.gate, ' at ', h.held_at,
        ', although of its ', g.capacity, ' places, as of ', g.updated_at, ', ', g.held,
        ' are taken') AS detail
FROM progressor.gates g
JOIN progressor.gate_holders h USING (namespace, gate)
WHERE g.held > g.capacity AND h.held_at > g.updated_at

-- name: gated_tasks_match_their_records
-- says: only tasks that have constraints and have not ended wait for constraints
-- A task gets its constraints with its record, and loses the row in gated when it ends: settle_gates.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' waits, ', g.state, ', ',
        CASE
            WHEN t.status IS NULL THEN 'and has no record'
            ELSE concat('its record says ', t.task_type, ', ', t.status, ', ',
                CASE WHEN t.constraints IS NULL THEN 'without' ELSE 'with' END, ' constraints')
        END) AS detail
FROM progressor.gated g
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
WHERE t.task_type IS DISTINCT FROM g.task_type
    OR t.constraints IS NULL
    OR NOT (t.status = 'waiting' OR (t.status = 'running' AND g.state = 'available'))

-- name: available_tasks_are_scheduled_or_leased
-- says: a task with constraints is scheduled or leased exactly while it is available
-- enqueue_task puts a task into the queue of its process and makes it available; dequeue_task takes it out.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' is ',
        CASE WHEN g.state = 'available' THEN 'available' ELSE concat('kept, ', g.state, ',') END,
        ' and ',
        CASE
            WHEN s.task_id IS NOT NULL THEN 'scheduled'
            WHEN r.task_id IS NOT NULL THEN 'leased'
            ELSE 'neither scheduled nor leased'
        END) AS detail
FROM progressor.gated g
LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.running r USING (slot, namespace, process_id, task_id)
WHERE (g.state = 'available') <> (s.task_id IS NOT NULL OR r.task_id IS NOT NULL)

-- name: available_tasks_hold_their_gates
-- says: an available task holds all its gates
-- All or none: try_gate_queue takes them at once. Who takes one away takes the task out of its queue as well.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' is available, and its gate ', w.gate, ' is ',
        CASE WHEN h.is_reserved THEN 'only reserved' ELSE 'not held by its process' END) AS detail
FROM progressor.gated g
CROSS JOIN LATERAL unnest(g.gates) AS w (gate)
LEFT JOIN progressor.gate_holders h USING (slot, namespace, process_id, gate)
WHERE g.state = 'available' AND h.is_reserved IS NOT FALSE

-- name: gate_holders_still_need_their_gates
-- says: a gate is held by an available task or a process at work, or reserved by a queued one
-- By an available task, which may run; by a process that is neither finished nor in error, until it is; or
-- reserved, for a queued task. The settlement that ends any of these gives the gates back.
SELECT h.namespace, h.process_id,
    concat('gate ', h.gate, ' is ', CASE WHEN h.is_reserved THEN 'reserved' ELSE 'held' END,
        ' until its ', h.hold, ' ends, by task ', h.task_id, ', which ',
        CASE WHEN g.state IS NULL THEN 'has ended' ELSE concat('waits, ', g.state) END,
        ', of a process that is ', coalesce(p.status::text, 'missing')) AS detail
FROM progressor.gate_holders h
LEFT JOIN progressor.gated g USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE CASE
    WHEN h.is_reserved THEN (g.state = 'gates' AND h.gate = ANY (g.gates)) IS NOT TRUE
    WHEN g.state = 'available' THEN NOT h.gate = ANY (g.gates)
    ELSE (h.hold = 'process' AND p.status IN ('init', 'running')) IS NOT TRUE
END

-- name: gate_queues_match_their_tasks
-- says: a gate queue knows its next and its oldest task, and waits for one of its gates
-- Who comes into a queue or leaves it notes in it who is next and who is oldest (move_gated,
-- refresh_gate_queue), under the lock of its first gate; the last one deletes it.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' for gates ', g.gates, ' is in queue ', g.queue, ', which ',
        CASE WHEN l.gates IS NULL THEN 'does not exist' ELSE 'is for others' END) AS detail
FROM progressor.gated g
LEFT JOIN progressor.gate_queues l USING (namespace, queue)
WHERE g.queue IS NOT NULL
    AND (l.gates IS NULL OR l.gates::text <> g.queue OR NOT l.gates <@ g.gates)
UNION ALL
SELECT l.namespace, '',
    concat('queue ', l.queue, ' waits for ', coalesce(l.waits_on, 'nothing'), ', next is task ',
        l.head_task_id, ' (', l.head_priority, '), the oldest ', l.oldest_id, ' of ', l.oldest_at,
        '; in it are ',
        coalesce(concat('task ', h.task_id, ' (', h.priority, '), the oldest ', o.task_id, ' of ',
            o.ready_at), 'nobody'))
FROM progressor.gate_queues l
LEFT JOIN LATERAL (
    SELECT g.priority, g.task_id
    FROM progressor.gated g
    WHERE (g.namespace, g.queue) = (l.namespace, l.queue)
    ORDER BY g.namespace, g.queue, g.priority, g.task_id
    LIMIT 1
) h ON true
LEFT JOIN LATERAL (
    SELECT g.ready_at, g.task_id
    FROM progressor.gated g
    WHERE (g.namespace, g.queue) = (l.namespace, l.queue)
    ORDER BY g.namespace, g.queue, g.ready_at, g.task_id
    LIMIT 1
) o ON true
WHERE (l.head_priority, l.head_task_id, l.oldest_at, l.oldest_id)
        IS DISTINCT FROM (h.priority, h.task_id, o.ready_at, o.task_id)
    OR NOT l.waits_on = ANY (l.gates)

-- name: gated_processes_are_marked
-- says: a process that has to do with gates is marked as gated
-- The settlement of a process that does not say so leaves its gates and its waiting tasks alone. settle_gates
-- has the last word about it in every transaction that has to do with gates.
SELECT w.namespace, w.process_id, concat(w.what, ', and the process is not gated') AS detail
FROM (
    SELECT slot, namespace, process_id, concat('task ', task_id, ' has constraints') AS what
    FROM progressor.gated
    UNION ALL
    SELECT slot, namespace, process_id, concat('it holds gate ', gate)
    FROM progressor.gate_holders
    UNION ALL
    SELECT p.slot, p.namespace, p.process_id,
        concat('timer ', p.corrupted_by, ' broke it, which has constraints')
    FROM progressor.processes p
    JOIN progressor.tasks b
        ON (b.slot, b.namespace, b.process_id, b.task_id)
            = (p.slot, p.namespace, p.process_id, p.corrupted_by)
    WHERE p.detail IS NOT NULL
        AND b.task_type IN ('timeout', 'remove')
        AND b.constraints IS NOT NULL
) w
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE p.is_gated IS NOT TRUE

-- name: tasks_behind_their_process_have_one_ahead
-- says: a task that waits for its process could not run there now
-- A transaction that frees a process checks the tasks waiting for it, under its lock.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' waits for its process, which has nothing before it') AS detail
FROM progressor.gated g
LEFT JOIN progressor.running r USING (slot, namespace, process_id)
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE g.state = 'process'
    AND r.task_id IS NULL
    AND (p.status = 'init' AND g.task_type <> 'init') IS NOT TRUE
    AND (p.status = 'error' AND g.task_id IS DISTINCT FROM p.corrupted_by) IS NOT TRUE
    AND NOT EXISTS (
        SELECT
        FROM progressor.schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (g.slot, g.namespace, g.process_id)
            AND s.task_type NOT IN ('timeout', 'remove')
            AND (s.task_id < g.task_id
                OR (s.attempt > 0 AND s.due_at IS NOT NULL)
                OR g.task_type IN ('timeout', 'remove'))
    )
    AND NOT EXISTS (
        SELECT
        FROM progressor.schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (g.slot, g.namespace, g.process_id)
            AND g.task_type IN ('timeout', 'remove')
            AND s.task_type IN ('timeout', 'remove')
            AND s.due_at <= (SELECT now())
    )
    AND NOT EXISTS (
        -- Of a crowd one is queued, the oldest.
        SELECT
        FROM progressor.gated o
        WHERE (o.slot, o.namespace, o.process_id, o.state, o.gates)
                = (g.slot, g.namespace, g.process_id, 'gates', g.gates)
            AND o.task_id < g.task_id
            AND g.task_type NOT IN ('timeout', 'remove')
            AND o.task_type NOT IN ('timeout', 'remove')
    )

-- name: marked_processes_are_gated
-- says: a process that is marked as gated has to do with gates
-- deep
-- The other direction of gated_processes_are_marked: such a one pays for gates that it has nothing to do
-- with.
SELECT p.namespace, p.process_id, 'it is gated, and has nothing to do with gates' AS detail
FROM progressor.processes p
LEFT JOIN progressor.gated g USING (slot, namespace, process_id)
LEFT JOIN progressor.gate_holders h USING (slot, namespace, process_id)
LEFT JOIN progressor.tasks b
    ON (b.slot, b.namespace, b.process_id, b.task_id)
        = (p.slot, p.namespace, p.process_id, p.corrupted_by)
    AND b.task_type IN ('timeout', 'remove')
    AND b.constraints IS NOT NULL
WHERE p.is_gated AND g.task_id IS NULL AND h.task_id IS NULL AND b.task_id IS NULL

-- name: times_spent_add_up
-- says: what a task with constraints has spent on each cause adds up to its life
-- deep
-- What a task with constraints has spent waiting for each cause, and running, is its life to the
-- microsecond: spent_us counts from one change of state to the next, by the clock of their transactions.
SELECT t.namespace, t.process_id,
    concat(t.task_type, ' ', t.task_id, ' (', t.status, ') ',
        CASE
            WHEN t.spent_us IS NULL THEN 'has not told how it has spent its life'
            WHEN t.finished_at IS NULL THEN 'has told how it has spent its life, and lives'
            ELSE concat('lived for ', l.us, ' us, and has spent ', s.us)
        END) AS detail
FROM progressor.tasks t
CROSS JOIN LATERAL (
    SELECT (extract(epoch FROM t.finished_at - t.created_at) * 1000000)::bigint AS us
) l
CROSS JOIN LATERAL (SELECT sum(n.us) AS us FROM unnest(t.spent_us) AS n (us)) s
WHERE t.constraints IS NOT NULL
    AND (t.spent_us IS NULL) IS DISTINCT FROM (t.status IN ('waiting', 'running'))
    OR s.us <> l.us

-- name: gate_queues_wait_for_full_gates
-- says: a gate queue waits for a gate that is full
-- lasting: gates not promoted; retrying
-- A transaction that frees a slot promotes from the queues waiting for it while slots remain.
SELECT l.namespace, '' AS process_id,
    concat('queue ', l.queue, ' waits for ',
        CASE
            WHEN l.waits_on IS NULL THEN 'nothing'
            WHEN g.gate IS NULL THEN concat('gate ', l.waits_on, ', which does not exist')
            ELSE concat('gate ', l.waits_on, ', which has a place')
        END,
        '; next is task ', l.head_task_id) AS detail
FROM progressor.gate_queues l
LEFT JOIN progressor.gates g ON (g.namespace, g.gate) = (l.namespace, l.waits_on)
WHERE (g.held >= g.capacity) IS NOT TRUE

-- name: orders_wait_for_smaller_versions
-- says: a task that waits for its order has a smaller version before it
-- lasting: gates not promoted; retrying
-- A transaction that ends a task checks the next tasks of its order.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' waits for its order ', g.order_key, ', in which no version is',
        ' smaller than ', array_to_string(g.order_version, '.')) AS detail
FROM progressor.gated g
WHERE g.state = 'order'
    AND NOT EXISTS (
        SELECT
        FROM progressor.gated o
        WHERE (o.namespace, o.order_key) = (g.namespace, g.order_key)
            AND o.order_version < g.order_version
    )

-- name: passed_instants_are_noticed
-- says: no task waits for an instant that has passed
-- lasting: gates not promoted; retrying
-- The replica that knows of an instant looks at the task then; the scan finds it where that is gone.
SELECT g.namespace, g.process_id,
    concat(g.task_type, ' ', g.task_id, ' waits for ', g.run_at, ', which has passed') AS detail
FROM progressor.gated g
WHERE g.state = 'time' AND (g.run_at <= (SELECT now())) IS NOT FALSE
