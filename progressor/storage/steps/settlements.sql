-- name: recall_settlement
-- Finds what a settlement did whose answer was lost: the task has ended under this token, in just this
-- way, and the lease that continued from it, if this replica still holds one. A replica that collected
-- the lease as a zombie has ended it under the same token but in another way: that lease is lost.
-- Locks: none. No row: it was not settled like this under this token, or is gone with its process.
SELECT
    coalesce(t.finished_at, t.started_at) AS settled_at,
    p.slot, p.namespace, p.process_id, p.status AS process_status, p.previous_status, p.detail,
    p.aux_state, p.metadata, p.corrupted_by, p.created_at, p.status_changed_at, p.last_event_id,
    p.init_task_id, p.state_version,
    n.task_id AS next_task_id, n.task_type AS next_task_type, n.attempt_count AS next_attempt,
    n.token AS next_token, n.args AS next_args, n.caller_context AS next_caller_context,
    n.trace_context AS next_trace_context, n.history_after AS next_history_after,
    n.history_limit AS next_history_limit, n.history_backward AS next_history_backward,
    n.step_timeout AS next_step_timeout, n.scheduled_at AS next_scheduled_at,
    n.started_at AS next_started_at, n.first_started_at AS next_first_started_at,
    n.timer_name AS next_timer_name, n.has_memos AS next_has_memos, n.sender AS next_sender,
    n.tried_for AS next_tried_for,
    CASE WHEN p.led_by IS NOT NULL OR p.leader_id IS NOT NULL OR p.job_options IS NOT NULL THEN
        json_build_array(
            p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options)
    END AS part
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

-- name: recall_turn
-- Finds the turn whose settlement has moved a lease to a task under this token, if its answer was lost. Nothing else
-- makes the token valid.
-- Locks: none. No row: it was not settled, or the lease has gone on.
SELECT r.leased_at
FROM progressor.running r
WHERE (r.slot, r.namespace, r.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    AND r.token = %(token)s
