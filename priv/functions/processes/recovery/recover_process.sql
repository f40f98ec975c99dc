-- Brings a broken process back without a repair handler. The task that broke it runs again and the process is running
-- once that has succeeded: any task if p_retries, otherwise only a timer; any other is left behind, and the process
-- is running at once, with what was held. A join is left behind and added again. The job that it leads continues,
-- and so does its node in a job.
-- Locks: the process, and the leader of the job that it follows in, in key order; then of these alone: schedule,
-- held, tasks, jobs, job_nodes; and where a task has constraints, as settle_gates.
-- Returns: a verdict of domain/processes/admission.py; the task that runs again; and what settle_gates returns.
CREATE FUNCTION recover_process(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_retries    boolean,
    p_audit      text DEFAULT NULL
)
RETURNS TABLE (verdict text, task_id bigint, effects jsonb)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now     timestamptz;
    v_process processes%ROWTYPE;
    v_broken  tasks%ROWTYPE;
BEGIN
    v_process := lock_with_leader(p_slot, p_namespace, p_process_id);
    v_now := coalesce(p_now, clock_timestamp());

    verdict := CASE v_process.status
        WHEN 'init' THEN 'process_is_running'
        WHEN 'running' THEN 'process_is_running'
        WHEN 'finished' THEN 'process_finished'
        WHEN 'error' THEN 'accepted'
        ELSE 'process_not_found'
    END;
    SELECT *
    INTO v_broken
    FROM tasks t
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, v_process.corrupted_by);
    -- A repair, or the task run again, is under way already.
    IF verdict = 'accepted' AND (
        EXISTS (SELECT FROM running r WHERE (r.slot, r.namespace, r.process_id)
            = (p_slot, p_namespace, p_process_id))
        OR EXISTS (SELECT FROM schedule s WHERE (s.slot, s.namespace, s.process_id)
            = (p_slot, p_namespace, p_process_id))
        OR v_broken.status = 'waiting'
    ) THEN
        verdict := 'process_is_running';
    ELSIF verdict = 'accepted' AND p_retries AND v_broken.task_id IS NULL THEN
        verdict := 'nothing_to_retry';
    END IF;
    IF verdict <> 'accepted' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    IF v_broken.task_type IN ('timeout', 'remove') OR (p_retries AND v_broken.task_type <> 'join') THEN
        task_id := v_broken.task_id;
        effects := run_broken_again(v_now, p_replica_id, p_starvation_timeout, v_process);
        PERFORM write_audit(
            p_audit, '{"status": "error"}', jsonb_build_object('status', 'error', 'task_id', task_id));
        RETURN NEXT;
        RETURN;
    END IF;

    UPDATE processes p
    SET status = 'running', previous_status = 'error', status_changed_at = v_now, detail = NULL,
        corrupted_by = NULL, broken_at = NULL, failure_id = NULL, failure_reason = NULL
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id);
    PERFORM count_changes(ARRAY[(p_namespace, 'error', 'running')::status_change]);
    PERFORM write_audit(p_audit, '{"status": "error"}', '{"status": "running"}');
    PERFORM forget_memos(ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    PERFORM release_held(
        p_replica_id, ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    PERFORM enqueue_first_task(v_now, p_slot, p_namespace, p_process_id);
    IF v_process.led_by IS NOT NULL THEN
        PERFORM resume_job(
            v_now, p_replica_id, p_starvation_timeout, p_slot, p_namespace, p_process_id);
        task_id := CASE WHEN v_broken.task_type = 'join' THEN (
            SELECT j.join_task_id FROM find_job(p_slot, p_namespace, p_process_id) j) END;
    END IF;
    effects := reopen_node(v_now, p_replica_id, p_starvation_timeout, v_process);
    effects := merge_json(effects, describe_recovered(
        v_now, p_replica_id, p_starvation_timeout,
        ARRAY[(p_slot, p_namespace, p_process_id)::process_key]));
    effects := merge_json(effects, settle_replies(
        v_now, ARRAY[(p_slot, p_namespace, p_process_id)::process_key], NULL, false));
    RETURN NEXT;
END;
$$;
