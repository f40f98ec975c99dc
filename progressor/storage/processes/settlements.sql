-- name: recall_settlement
-- Finds what a settlement did whose answer was lost: the task has ended under this token, in just this
-- way, and the lease that continued from it, if this replica still holds one. Whoever collected the
-- lease as a zombie has ended it under the same token, but in another way: that is a lease lost.
-- Locks: none. No row: it was not settled like this under this token, or is gone with its process.
SELECT
    coalesce(t.finished_at, t.started_at),
    p.status, p.previous_status, p.detail, p.aux_state, p.metadata, p.corrupted_by, p.created_at,
    p.status_changed_at, p.last_event_id, p.init_task_id,
    n.task_id, n.task_type, n.attempt_count, n.token, n.args, n.caller_context, n.trace_context,
    n.history_after, n.history_limit, n.history_backward,
    extract(epoch FROM n.step_timeout)::double precision,
    n.scheduled_at, n.started_at, n.first_started_at,
    CASE WHEN p.led_by IS NOT NULL OR p.leader_id IS NOT NULL OR p.job_options IS NOT NULL THEN
        json_build_array(
            p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options)
    END
FROM progressor.tasks t
JOIN progressor.processes p USING (slot, namespace, process_id)
LEFT JOIN progressor.running r
    ON (r.slot, r.namespace, r.process_id) = (t.slot, t.namespace, t.process_id)
    AND r.previous_token = %(token)s
    AND r.replica_id = %(replica_id)s
LEFT JOIN progressor.tasks n
    ON (n.slot, n.namespace, n.process_id, n.task_id)
     = (r.slot, r.namespace, r.process_id, r.task_id)
WHERE (t.slot, t.namespace, t.process_id, t.task_id)
    = (%(slot)s, %(namespace)s, %(process_id)s, %(task_id)s)
    AND t.token = %(token)s
    AND t.status = %(status)s::progressor.task_status
    AND t.error_reason IS NOT DISTINCT FROM %(error_reason)s::text
