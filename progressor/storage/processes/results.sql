-- name: fetch_results
-- Reads how tasks ended; those that have not are left out. A task that is gone with its process may
-- have left its answer in replies; else it counts as cancelled. Locks: none.
SELECT i.task_id,
    coalesce(t.task_type, a.task_type, 'call') AS task_type,
    coalesce(t.status, a.status, 'cancelled') AS status,
    coalesce(t.response, a.response) AS response,
    coalesce(t.error_code, a.error_code) AS error_code,
    coalesce(t.error_reason, a.error_reason) AS error_reason,
    coalesce(t.error_message, a.error_message) AS error_message,
    coalesce(t.error_rejected, a.error_rejected) AS error_rejected,
    coalesce(t.error_metadata, a.error_metadata) AS error_metadata,
    t.task_id IS NULL AND a.task_id IS NULL AS removed
FROM unnest(
    %(slot)s::smallint[], %(namespace)s::text[], %(process_id)s::text[], %(task_id)s::bigint[]
) AS i (slot, namespace, process_id, task_id)
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.replies a
    ON t.task_id IS NULL
    AND (a.slot, a.namespace, a.process_id, a.task_id)
        = (i.slot, i.namespace, i.process_id, i.task_id)
WHERE t.status IS NULL OR t.status IN ('finished', 'error', 'cancelled')

-- name: notify_replicas
-- Tells other replicas that tasks have ended for which callers wait there.
SELECT pg_notify('progressor_' || n.replica_id, n.task_ids)
FROM unnest(%(replica_id)s::bigint[], %(task_ids)s::text[]) AS n (replica_id, task_ids)

-- name: call_others
-- Tells the other living replicas that tasks are due which this one leaves to them. Locks: none.
SELECT pg_notify('progressor_' || replica_id, %(payload)s)
FROM progressor.replicas
WHERE replica_id <> %(replica_id)s
    AND heartbeat_at >= coalesce(%(now)s, clock_timestamp()) - coalesce(lease_timeout, %(lease_timeout)s)
