-- Cancels a task that has not ended, given by its id or its idempotency key. It releases its gates, and the next task
-- in the queue of its process becomes due, or the parked timer wakes. The process stays as it was. A running step finds
-- its lease gone; its processor may have acted, so the record says that, and the key stays. Cancelling an init task
-- also deletes the process, and fails its node if it follows in a job; of one that ran, the answer is kept in replies.
-- The task that broke a process and runs again, or is about to, has begun before: its key stays, and its process is in
-- error, as it was.
-- Locks: the process, and the leader of the job that it follows in, in key order; then as settle_gates.
-- Returns: a verdict: cancelled, process_not_found, task_not_found, task_has_ended; the task; whether its process was
-- deleted; what was cancelled, as delete_processes returns it; and the effects, as settle_gates returns them.
CREATE FUNCTION cancel_task(
    LIKE own_arguments,
    p_slot            smallint,
    p_namespace       text,
    p_process_id      text,
    p_task_id         bigint,
    p_idempotency_key text,
    p_audit           text DEFAULT NULL
)
RETURNS TABLE (
    verdict text, task_id bigint, removed boolean, cancelled jsonb, effects jsonb
)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now     timestamptz;
    v_process processes%ROWTYPE;
    v_task    tasks%ROWTYPE;
    v_running running%ROWTYPE;
    v_effects jsonb;
    v_retries boolean;
BEGIN
    v_process := lock_with_leader(p_slot, p_namespace, p_process_id);
    v_now := coalesce(p_now, clock_timestamp());
    p_task_id := coalesce(p_task_id, (
        SELECT t.task_id
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.idempotency_key)
            = (p_slot, p_namespace, p_process_id, p_idempotency_key)));
    SELECT *
    INTO v_task
    FROM tasks t
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    task_id := v_task.task_id;
    verdict := CASE
        WHEN v_process.process_id IS NULL THEN 'process_not_found'
        WHEN v_task.task_id IS NULL THEN 'task_not_found'
        WHEN v_task.status IN ('finished', 'error', 'cancelled') THEN 'task_has_ended'
        ELSE 'cancelled'
    END;
    IF verdict <> 'cancelled' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    v_retries := v_process.status = 'error' AND v_task.task_id IS NOT DISTINCT FROM v_process.corrupted_by;
    removed := v_task.task_type = 'init' AND NOT v_retries;
    DELETE FROM running r
    WHERE (r.slot, r.namespace, r.process_id) = (p_slot, p_namespace, p_process_id)
        AND r.task_id = v_task.task_id
    RETURNING * INTO v_running;
    -- A caller whose own replica carries the task is noted nowhere else than in that replica.
    cancelled := jsonb_build_array(jsonb_build_array(
        v_task.task_id, v_task.task_type,
        to_jsonb(array_remove(array_append(v_task.reply_to, v_running.replica_id), NULL)),
        v_running.replica_id, v_running.token));
    UPDATE tasks t
    SET status = 'cancelled', finished_at = v_now, error_code = 10,
        error_reason = CASE WHEN removed THEN 'PROCESS_REMOVED' ELSE 'TASK_CANCELLED' END,
        error_message = CASE WHEN v_running.token IS NULL THEN 'cancelled by request'
            ELSE 'cancelled by request while it ran: its processor may have acted' END,
        error_rejected = false,
        idempotency_key = CASE WHEN t.attempt_count > 0 OR v_retries THEN t.idempotency_key END
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, v_task.task_id);
    PERFORM write_audit(
        p_audit,
        jsonb_build_object(
            'status', v_process.status, 'task_id', task_id, 'task_status',
            CASE WHEN v_running.token IS NULL THEN v_task.status ELSE 'running' END),
        jsonb_build_object(
            'status', CASE WHEN NOT removed THEN v_process.status END, 'task_id', task_id,
            'task_status', 'cancelled'));
    -- The process is gone, or nothing may be left that brings it back.
    IF removed OR v_process.status = 'error' THEN
        effects := describe_ends(ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    END IF;
    IF removed THEN
        cancelled := merge_json(
            cancelled,
            delete_processes(
                v_now - interval '1 minute',
                ARRAY[(p_slot, p_namespace, p_process_id)::process_key]));
        effects := merge_json(effects, fail_node(
            v_now, p_replica_id, v_process, 'TASK_CANCELLED', 'cancelled by request'));
    ELSE
        DELETE FROM held h
        WHERE (h.slot, h.namespace, h.process_id, h.task_id)
            = (p_slot, p_namespace, p_process_id, v_task.task_id);
        PERFORM dequeue_task(v_now, p_slot, p_namespace, p_process_id, v_task.task_id);
        IF v_task.has_memos THEN
            PERFORM forget_memos(ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
        END IF;
    END IF;
    IF v_process.is_gated THEN
        v_effects := settle_gates(
            v_now, p_replica_id, p_starvation_timeout, 100,
            ARRAY[(p_slot, p_namespace, p_process_id)::process_key], ARRAY[v_task.task_id]);
    ELSE
        v_effects := describe_first_task(v_now, p_slot, p_namespace, p_process_id);
    END IF;
    effects := merge_json(effects, v_effects);
    IF v_process.has_reply_requests THEN
        effects := merge_json(effects, describe_senders(
            ARRAY[(p_slot, p_namespace, p_process_id)::process_key]));
        PERFORM settle_replies(
            v_now, ARRAY[(p_slot, p_namespace, p_process_id)::process_key], NULL, false);
    END IF;
    RETURN NEXT;
END;
$$;
