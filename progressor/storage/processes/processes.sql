-- name: trace_tasks
-- Reads tasks of a process in the order of their ids. Locks: none. Only of one with constraints it is
-- asked whether it is available: no other has a row there. What a job that the engine leads was started with
-- is in a form of the engine's own.
SELECT t.task_id, t.task_type,
    coalesce(
        CASE WHEN t.constraints IS NOT NULL AND t.status = 'waiting' THEN (
            SELECT CASE
                WHEN g.state = 'available' THEN 'available'
                WHEN g.state = 'process' AND g.task_type IN ('timeout', 'remove') THEN 'blocked'
            END::progressor.task_status
            FROM progressor.gated g
            WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                = (t.slot, t.namespace, t.process_id, t.task_id)
        ) END, s.status, CASE WHEN h.task_id IS NOT NULL THEN 'blocked' END::progressor.task_status, t.status
    ) AS status,
    t.created_at, t.scheduled_at,
    t.started_at, t.finished_at, t.attempt_count,
    CASE
        WHEN t.task_type = 'init' AND (
            SELECT p.led_by
            FROM progressor.processes p
            WHERE (p.slot, p.namespace, p.process_id) = (t.slot, t.namespace, t.process_id)
        ) = 'engine' THEN ''
        ELSE t.args
    END AS args,
    t.caller_context, t.idempotency_key, t.response, t.error_code, t.error_reason, t.error_message,
    t.error_rejected, t.error_metadata, t.first_event_id, t.event_count, t.constraints,
    t.spent_us AS spent, t.replica_id,
    (
        SELECT jsonb_agg(
            jsonb_build_array(r.number, r.kind, r.receiver_namespace, r.receiver_id, r.reason)
            ORDER BY r.number)
        FROM progressor.refused_messages r
        WHERE (r.slot, r.namespace, r.process_id, r.task_id)
            = (t.slot, t.namespace, t.process_id, t.task_id)
    ) AS refused,
    t.timer_name, t.sender
FROM progressor.tasks t
LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.held h USING (slot, namespace, process_id, task_id)
WHERE (t.slot, t.namespace, t.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    AND t.task_id > %(after)s AND t.task_id < %(before)s
ORDER BY t.slot, t.namespace, t.process_id, t.task_id
LIMIT %(limit)s

-- name: find_last_tasks
-- Finds where the last tasks of a process before an id begin. Locks: none.
SELECT min(t.task_id) AS task_id
FROM (
    SELECT task_id
    FROM progressor.tasks
    WHERE (slot, namespace, process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
        AND task_id < %(before)s
    ORDER BY slot DESC, namespace DESC, process_id DESC, task_id DESC
    LIMIT %(limit)s
) t

-- name: trace_events
-- Reads the events of some tasks, given each one's first event and how many. Locks: none.
SELECT e.event_id, e.occurred_at, e.payload, e.format_version, e.metadata, e.task_id
FROM unnest(%(first)s::bigint[], %(count)s::bigint[]) AS t (first, count)
JOIN progressor.events e
    ON (e.slot, e.namespace, e.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    AND e.event_id BETWEEN t.first AND t.first + t.count - 1
ORDER BY e.event_id

-- name: history_forward
-- Reads events after an id, oldest first. Locks: none.
SELECT event_id, occurred_at, payload, format_version, metadata, task_id
FROM progressor.events
WHERE (slot, namespace, process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    AND event_id > %(after)s AND event_id <= %(last)s
ORDER BY slot, namespace, process_id, event_id
LIMIT %(limit)s

-- name: history_backward
-- Reads events before an id, newest first. Locks: none.
SELECT event_id, occurred_at, payload, format_version, metadata, task_id
FROM progressor.events
WHERE (slot, namespace, process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    AND event_id < %(after)s AND event_id <= %(last)s
ORDER BY slot DESC, namespace DESC, process_id DESC, event_id DESC
LIMIT %(limit)s

-- name: find_init_task
-- Finds what tells a process from others that had its id before, or will have it.
SELECT init_task_id
FROM progressor.processes
WHERE (slot, namespace, process_id) = (%(slot)s, %(namespace)s, %(process_id)s)

-- name: read_memos
-- Reads the memos of a leased task: one row without a key if it has none, no row if the lease is lost. Locks: none.
SELECT m.key, m.value
FROM progressor.running r
LEFT JOIN progressor.memos m USING (slot, namespace, process_id, task_id)
WHERE (r.slot, r.namespace, r.process_id, r.task_id, r.token)
    = (%(slot)s, %(namespace)s, %(process_id)s, %(task_id)s, %(token)s)

-- name: find_repeated
-- Returns for each idempotency key, in the order given, whether there is a task of it, or an answer that a process
-- which is gone has left. Locks: none.
SELECT EXISTS (
    SELECT FROM progressor.tasks t
    WHERE (t.slot, t.namespace, t.process_id, t.idempotency_key)
        = (i.slot, i.namespace, i.process_id, i.idempotency_key)
) OR EXISTS (
    SELECT FROM progressor.replies a
    WHERE (a.slot, a.namespace, a.process_id, a.idempotency_key)
        = (i.slot, i.namespace, i.process_id, i.idempotency_key)
) AS is_known
FROM unnest(
    %(slot)s::smallint[], %(namespace)s::text[], %(process_id)s::text[],
    %(idempotency_key)s::text[]
) WITH ORDINALITY AS i (slot, namespace, process_id, idempotency_key, number)
ORDER BY i.number
