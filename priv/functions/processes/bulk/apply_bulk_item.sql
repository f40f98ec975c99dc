-- Applies a bulk operation to one process, as the function of the single request does. It is skipped if it is not as it
-- matched: another process by now, repaired, broken again, or being repaired or retried. Requests have an idempotency key of the operation and item.
-- Locks: as the function of the single request.
-- Returns: the result, which the caller records in the same transaction.
CREATE FUNCTION apply_bulk_item(LIKE own_arguments, p_bulk bulk_operations, p_item bulk_items)
RETURNS applied_item
AS $$
DECLARE
    v_process processes%ROWTYPE;
    v_applied applied_item;
    v_verdict text;
BEGIN
    v_process := lock_with_leader(p_item.slot, p_item.namespace, p_item.process_id);
    v_applied.result := 'skipped';
    IF v_process.init_task_id IS DISTINCT FROM p_item.init_task_id THEN
        v_applied.reason := 'PROCESS_NOT_FOUND';
        RETURN v_applied;
    END IF;
    IF v_process.corrupted_by IS DISTINCT FROM p_item.broken_by
        OR (v_process.status = 'error' AND v_process.broken_at IS DISTINCT FROM p_item.broken_at)
        OR (v_process.status <> 'error' AND p_item.broken_at IS NOT NULL)
        OR p_item.broken_token <> (
            SELECT t.token
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (p_item.slot, p_item.namespace, p_item.process_id, p_item.broken_by) AND t.status = 'error')
    THEN
        v_applied.reason := 'PROCESS_CHANGED';
        RETURN v_applied;
    END IF;

    CASE
        WHEN p_bulk.kind IN ('retry', 'simple_repair') THEN
            SELECT r.verdict, r.task_id, r.effects
            INTO v_verdict, v_applied.task_id, v_applied.effects
            FROM recover_process(
                p_now, p_replica_id, p_starvation_timeout, p_item.slot, p_item.namespace,
                p_item.process_id, p_bulk.kind = 'retry') r;
        WHEN p_bulk.kind IN ('repair', 'notify') THEN
            SELECT r.verdict, r.task_id
            INTO v_verdict, v_applied.task_id
            FROM admit_requests(
                p_now => p_now, p_replica_id => p_replica_id,
                p_slot => ARRAY[p_item.slot], p_namespace => ARRAY[p_item.namespace],
                p_process_id => ARRAY[p_item.process_id], p_head => ARRAY[1],
                p_task_type => ARRAY[p_bulk.kind], p_args => ARRAY[p_bulk.args],
                p_caller_context => ARRAY[NULL::json], p_trace_context => ARRAY[NULL::json],
                p_history_after => ARRAY[NULL::bigint], p_history_limit => ARRAY[NULL::integer],
                p_history_backward => ARRAY[NULL::boolean],
                p_idempotency_key => ARRAY[format('bulk/%s/%s', p_item.item, p_bulk.operation_id)],
                p_fingerprint => ARRAY[uuid_send(md5(p_bulk.args)::uuid)], p_waits => ARRAY[false],
                p_run => ARRAY[false], p_expires_after => ARRAY[0::double precision],
                p_sender => NULL) r;
            v_applied.effects := describe_first_task(
                coalesce(p_now, clock_timestamp()), p_item.slot, p_item.namespace, p_item.process_id);
        WHEN p_bulk.kind = 'cancel' THEN
            SELECT c.verdict, c.task_id, c.removed, c.cancelled, c.effects
            INTO v_verdict, v_applied.task_id, v_applied.removed, v_applied.cancelled, v_applied.effects
            FROM cancel_task(
                p_now, p_replica_id, p_starvation_timeout, p_item.slot, p_item.namespace,
                p_item.process_id, p_item.task_id, NULL) c;
        WHEN p_bulk.kind = 'terminate' THEN
            SELECT h.verdict, h.cancelled, h.effects, h.leads
            INTO v_verdict, v_applied.cancelled, v_applied.effects, v_applied.leads
            FROM halt_process(
                p_now, p_replica_id, p_starvation_timeout, p_item.slot, p_item.namespace,
                p_item.process_id, 'finished', p_bulk.reason) h;
        ELSE
            SELECT CASE WHEN r.existed THEN 'accepted' ELSE 'process_not_found' END, true, r.cancelled, r.effects
            INTO v_verdict, v_applied.removed, v_applied.cancelled, v_applied.effects
            FROM remove_process(
                p_now, p_replica_id, p_starvation_timeout, p_item.slot, p_item.namespace,
                p_item.process_id, p_item.init_task_id) r;
    END CASE;
    v_applied.result := CASE
        WHEN v_verdict IN ('accepted', 'duplicate', 'cancelled', 'halted') THEN 'done'
        -- It is in error still, but its repair or retry is under way.
        WHEN v_verdict = 'process_is_running' THEN 'skipped'
        ELSE 'failed'
    END;
    v_applied.reason := CASE
        WHEN v_applied.result = 'done' THEN NULL
        WHEN v_verdict = 'process_has_ended' THEN 'PROCESS_FINISHED'
        WHEN v_verdict = 'key_reused' THEN 'IDEMPOTENCY_KEY_REUSED'
        ELSE upper(v_verdict)
    END;
    RETURN v_applied;
END;
$$;
