-- Cancels a waiting or available task, given by its id or its idempotency key. It releases its gates, and the next
-- task in the queue of its process becomes due, or the parked timer wakes. Cancelling an init task also deletes the
-- process, which was never started, and fails its node if it follows in a job. The task that broke a process and
-- is about to run again has begun before: its key stays, and its process is in error, as it was.
-- Locks: the process, and the leader of the job that it follows in, in key order; then as settle_gates.
-- Returns: a verdict: cancelled, process_not_found, task_not_found, task_is_running, task_has_ended; the task; what
-- was cancelled, as in settle_tasks; and the effects, as settle_gates returns them.
CREATE FUNCTION cancel_task(
    LIKE own_arguments,
    p_slot            smallint,
    p_namespace       text,
    p_process_id      text,
    p_task_id         bigint,
    p_idempotency_key text
)
RETURNS TABLE (
    verdict text, task_id bigint, task_type text, cancelled jsonb, effects jsonb
)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now     timestamptz;
    v_process processes%ROWTYPE;
    v_task    tasks%ROWTYPE;
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
    task_type := v_task.task_type;
    verdict := CASE
        WHEN v_process.process_id IS NULL THEN 'process_not_found'
        WHEN v_task.task_id IS NULL THEN 'task_not_found'
        WHEN v_task.status IN ('finished', 'error', 'cancelled') THEN 'task_has_ended'
        WHEN v_task.status = 'running' THEN 'task_is_running'
        ELSE 'cancelled'
    END;
    IF verdict <> 'cancelled' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    v_retries := v_process.status = 'error' AND v_task.task_id IS NOT DISTINCT FROM v_process.corrupted_by;
    IF v_task.task_type = 'init' AND NOT v_retries THEN
        cancelled := delete_process(v_now - interval '1 minute', p_slot, p_namespace, p_process_id);
        effects := fail_node(
            v_now, p_replica_id, v_process, 'TASK_CANCELLED', 'cancelled by request');
    ELSE
        cancelled := jsonb_build_array(jsonb_build_array(
            v_task.task_id, v_task.task_type, coalesce(to_jsonb(v_task.reply_to), '[]')));
        UPDATE tasks t
        SET status = 'cancelled', finished_at = v_now, error_code = 10,
            error_reason = 'TASK_CANCELLED', error_message = 'cancelled by request',
            error_rejected = false,
            idempotency_key = CASE WHEN t.attempt_count > 0 OR v_retries THEN t.idempotency_key END
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p_slot, p_namespace, p_process_id, v_task.task_id);
        DELETE FROM held h
        WHERE (h.slot, h.namespace, h.process_id, h.task_id)
            = (p_slot, p_namespace, p_process_id, v_task.task_id);
        PERFORM dequeue_task(v_now, p_slot, p_namespace, p_process_id, v_task.task_id);
    END IF;
    IF v_process.is_gated THEN
        v_effects := settle_gates(
            v_now, p_replica_id, p_starvation_timeout, 100,
            ARRAY[(p_slot, p_namespace, p_process_id)::process_key], ARRAY[v_task.task_id]);
    ELSE
        v_effects := describe_first_task(v_now, p_slot, p_namespace, p_process_id);
    END IF;
    effects := merge_json(effects, v_effects);
    RETURN NEXT;
END;
$$;
