-- Repairs a broken process without its processor: a failed timer runs again and sets the process to running once it
-- succeeds; otherwise it is running at once. The job that it leads continues, and so does its node in a job.
-- Locks: the process, and the leader of the job that it follows in, in key order; then of these alone: schedule,
-- tasks, jobs, job_nodes; and where that timer has constraints, as settle_gates.
-- Returns: a verdict of domain/processes/admission.py and, where a timer runs again, its new task, due now; or, in
-- place of that instant, what settle_gates returns; so is a join that is due again.
CREATE FUNCTION simple_repair(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text
)
RETURNS TABLE (verdict text, task_id bigint, due_at timestamptz, effects jsonb)
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
    -- A repair, or the timer run again, is under way already.
    IF verdict = 'accepted' AND (
        EXISTS (SELECT FROM running r WHERE (r.slot, r.namespace, r.process_id)
            = (p_slot, p_namespace, p_process_id))
        OR EXISTS (SELECT FROM schedule s WHERE (s.slot, s.namespace, s.process_id)
            = (p_slot, p_namespace, p_process_id))
        OR EXISTS (SELECT FROM gated g WHERE (g.slot, g.namespace, g.process_id)
            = (p_slot, p_namespace, p_process_id))
    ) THEN
        verdict := 'process_is_running';
    END IF;
    IF verdict <> 'accepted' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT *
    INTO v_broken
    FROM tasks t
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, v_process.corrupted_by)
        AND t.task_type IN ('timeout', 'remove');
    IF NOT FOUND THEN
        UPDATE processes p
        SET status = 'running', previous_status = 'error', status_changed_at = v_now,
            detail = NULL, corrupted_by = NULL
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id);
        IF v_process.led_by IS NOT NULL THEN
            PERFORM resume_job(v_now, p_replica_id, p_slot, p_namespace, p_process_id);
            effects := find_due_join(p_slot, p_namespace, p_process_id);
        END IF;
        PERFORM reopen_node(v_now, p_replica_id, v_process);
        RETURN NEXT;
        RETURN;
    END IF;

    task_id := nextval('task_ids');
    due_at := v_now;
    PERFORM run_timer_again(v_now, p_replica_id, v_broken, task_id);
    IF v_broken.constraints IS NOT NULL THEN
        due_at := NULL;
        effects := apply_constraints(
            v_now, p_replica_id, p_starvation_timeout, ARRAY[p_slot], ARRAY[p_namespace],
            ARRAY[p_process_id], ARRAY[task_id], ARRAY[v_broken.constraints]);
    END IF;
    RETURN NEXT;
END;
$$;
