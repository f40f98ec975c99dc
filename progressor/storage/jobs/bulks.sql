-- name: read_bulk
-- Reads bulk operations: one, or a page, newest first. The state is that of its process where that has failed, or
-- was ended by someone; one without a process is being deleted. Locks: none.
SELECT o.operation_id, o.kind,
    CASE
        WHEN o.ended_at IS NOT NULL THEN o.state
        WHEN p.status = 'finished' THEN 'stopped'
        WHEN p.status = 'error' THEN 'failed'
        ELSE s.phase
    END AS state,
    o.filter, o.reason, o.author, o.rate_max, o.failed_share_max, o.failed_window, o.follow,
    CASE
        WHEN o.ended_at IS NULL THEN coalesce(p.end_reason, p.detail, o.stop_reason) ELSE o.stop_reason
    END AS stop_reason,
    o.created_at, o.updated_at, coalesce(o.ended_at, p.finished_at) AS ended_at, o.matched_count, o.done_count, o.skipped_count,
    o.failed_count, s.phase
FROM progressor.bulk_operations o
JOIN progressor.processes p
    ON p.namespace = %(namespace)s AND p.process_id = o.operation_id AND p.slot = o.slot
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN o.follow AND o.state = 'running' AND o.next_item > o.matched_count THEN 'following'
        ELSE o.state
    END AS phase
) s
WHERE (%(operation_id)s::text IS NULL OR o.operation_id = %(operation_id)s)
    AND (%(before_at)s::timestamptz IS NULL
        OR (o.created_at, o.operation_id) < (%(before_at)s, %(before_id)s::text))
ORDER BY o.created_at DESC, o.operation_id DESC
LIMIT %(limit)s

-- name: count_outcomes
-- Counts what has become of the last processes that a bulk operation has changed: which are in error, and of which
-- others the requested step has not ended. One in error with such a step is being retried or repaired; but a notify
-- is held by the error. Locks: none.
SELECT count(*) FILTER (WHERE o.is_in_error) AS error_count,
    count(*) FILTER (WHERE o.is_waiting AND NOT o.is_in_error) AS waiting_count
FROM (
    SELECT i.*
    FROM progressor.bulk_items i
    WHERE i.operation_id = %(operation_id)s AND i.result = 'done'
    ORDER BY i.operation_id DESC, i.item DESC
    LIMIT %(limit)s
) i
CROSS JOIN LATERAL (
    SELECT p.status, p.init_task_id
    FROM progressor.processes p
    WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
    OFFSET 0
) p
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT
        FROM progressor.tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (i.slot, i.namespace, i.process_id, i.task_id)
            AND t.finished_at IS NULL
    ) AS is_waiting
) w
CROSS JOIN LATERAL (
    SELECT w.is_waiting, p.status = 'error' AND (%(holds)s::boolean OR NOT w.is_waiting) AS is_in_error
) o
WHERE p.init_task_id = i.init_task_id

-- name: stop_bulk
-- Stops a bulk operation that has not ended; one that follows is done if all its processes have a result. Locks: the
-- operation.
WITH known AS MATERIALIZED (
    SELECT *
    FROM progressor.bulk_operations
    WHERE operation_id = %(operation_id)s AND ended_at IS NULL
    FOR NO KEY UPDATE
),
stopped AS (
    UPDATE progressor.bulk_operations o
    SET state = CASE
            WHEN o.follow AND o.state = 'running' AND o.next_item > o.matched_count THEN 'done' ELSE 'stopped' END,
        stop_reason = %(reason)s, ended_at = coalesce(%(now)s, clock_timestamp()),
        updated_at = coalesce(%(now)s, clock_timestamp())
    FROM known k
    WHERE o.operation_id = k.operation_id
    RETURNING o.operation_id, o.state
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb || jsonb_build_object('namespace', coalesce(k.filter ->> 'namespace', '')),
        jsonb_build_object('state', k.state), jsonb_build_object('state', s.state)
    FROM stopped s
    JOIN known k USING (operation_id)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT
FROM stopped

-- name: note_delay
-- Notes why a bulk operation does not get on; the next chunk clears it. Locks: the operation.
UPDATE progressor.bulk_operations
SET stop_reason = %(why)s
WHERE operation_id = %(operation_id)s AND ended_at IS NULL

-- name: list_items
-- Pages through the processes of a bulk operation in their order; `failed`: only the failed. Locks: none.
SELECT item, namespace, process_id, coalesce(result, 'pending') AS result, coalesce(reason, '') AS reason,
    task_id, ended_at
FROM progressor.bulk_items
WHERE operation_id = %(operation_id)s AND item > %(after)s
    AND (NOT %(failed)s::boolean OR result = 'failed')
ORDER BY operation_id, item
LIMIT %(limit)s
