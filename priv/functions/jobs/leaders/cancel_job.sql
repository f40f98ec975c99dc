-- Cancels a job that runs: its leader is finished, and what was not started never will be. What was is stopped by
-- maintain_job, or by the settlement of the step that it has in hand. A leader that follows in another job breaks
-- instead: its job has failed, and so has its node there. It can be brought back with that one.
-- Locks: the leader, and the leader of the job that it follows in, in key order; then as halt_processes.
-- Returns: a verdict: cancelled, job_not_found, job_ended; the tasks of the leader that were cancelled; and the
-- effects, with the tasks that are due now of the job that it follows in.
CREATE FUNCTION cancel_job(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_reason     text,
    p_audit      text,
    OUT verdict   text,
    OUT cancelled jsonb,
    OUT effects   jsonb
)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now    timestamptz;
    v_key    process_key[] := ARRAY[(p_slot, p_namespace, p_process_id)::process_key];
    v_leader processes%ROWTYPE;
    v_state  job_state;
    v_halted halted;
    v_why    text := coalesce(nullif(p_reason, ''), 'the job was cancelled');
    v_detail text := concat('JOB_CANCELLED: ', v_why);
BEGIN
    v_leader := lock_with_leader(p_slot, p_namespace, p_process_id);
    SELECT j.state
    INTO v_state
    FROM find_job(v_leader.slot, v_leader.namespace, v_leader.process_id) j;
    v_now := coalesce(p_now, clock_timestamp());
    verdict := CASE
        WHEN v_state IS NULL THEN 'job_not_found'
        WHEN v_state <> 'running' THEN 'job_ended'
        ELSE 'cancelled'
    END;
    IF verdict <> 'cancelled' THEN
        RETURN;
    END IF;

    PERFORM end_jobs(
        v_now, v_key, CASE WHEN v_leader.leader_id IS NULL THEN 'cancelled' ELSE 'failed' END::job_state,
        ARRAY[CASE WHEN v_leader.leader_id IS NULL THEN p_reason ELSE v_detail END]);
    v_halted := halt_processes(
        v_now, p_replica_id, p_starvation_timeout,
        CASE WHEN v_leader.leader_id IS NULL THEN 'finished' ELSE 'error' END::process_status, v_key,
        ARRAY[v_detail]);
    PERFORM write_audit(p_audit, '{"state": "running"}', jsonb_build_object(
        'state', CASE WHEN v_leader.leader_id IS NULL THEN 'cancelled' ELSE 'failed' END));
    cancelled := v_halted.cancelled -> 0 -> 3;
    effects := v_halted.effects;
    effects := merge_json(effects, fail_node(v_now, p_replica_id, v_leader, 'JOB_CANCELLED', v_why));
END;
$$;
