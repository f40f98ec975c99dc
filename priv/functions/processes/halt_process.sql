-- Ends a process from outside of its steps: p_status is 'error' of one that has not ended, or 'finished' of one in any
-- other status, which keeps the detail as the reason of its end. Its waiting tasks are cancelled, and a running step
-- finds its lease gone. A job that it leads fails, or is cancelled with a leader that is finished, even if it had failed:
-- it cannot be retried. Its node in a job fails.
-- Locks: the process and its leader, as lock_with_leader; then as halt_processes and start_nodes.
-- Returns: a verdict (halted, process_not_found, process_has_ended), its unfinished tasks as settle_tasks returns
-- the cancelled ones, what settle_gates returns, and whether it leads a job.
CREATE FUNCTION halt_process(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_status     text,
    p_detail     text,
    p_audit      text DEFAULT NULL
)
RETURNS TABLE (verdict text, cancelled jsonb, effects jsonb, leads boolean)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now     timestamptz;
    v_key     process_key[] := ARRAY[(p_slot, p_namespace, p_process_id)::process_key];
    v_process processes%ROWTYPE;
    v_halted  halted;
BEGIN
    v_process := lock_with_leader(p_slot, p_namespace, p_process_id);
    v_now := coalesce(p_now, clock_timestamp());
    verdict := CASE
        WHEN v_process.status IS NULL THEN 'process_not_found'
        WHEN v_process.status::text IN ('finished', p_status) THEN 'process_has_ended'
        ELSE 'halted'
    END;
    IF verdict <> 'halted' THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_halted := halt_processes(
        v_now, p_replica_id, p_starvation_timeout, p_status::process_status, v_key, ARRAY[p_detail]);
    cancelled := v_halted.cancelled -> 0 -> 3;
    effects := v_halted.effects;
    leads := v_process.led_by IS NOT NULL;
    PERFORM end_jobs(
        v_now, v_key, CASE p_status WHEN 'finished' THEN 'cancelled' ELSE 'failed' END::job_state,
        ARRAY[p_detail]);
    IF leads AND p_status = 'finished' THEN
        UPDATE jobs j
        SET state = 'cancelled', detail = p_detail, revision = j.revision + 1, updated_at = v_now
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
            AND j.state = 'failed';
    END IF;
    PERFORM write_audit(
        p_audit, jsonb_build_object('status', v_process.status), jsonb_build_object('status', p_status));
    effects := merge_json(effects, fail_node(
        v_now, p_replica_id, v_process,
        CASE p_status WHEN 'finished' THEN 'PROCESS_TERMINATED' ELSE 'PROCESS_FAILED' END, p_detail));
    RETURN NEXT;
END;
$$;
