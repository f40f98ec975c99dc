-- Fails jobs as a whole, those that run: what has not been started fails at once; what runs ends its step and goes
-- no further (stop_nodes); the leader breaks. A leader that follows in another job has its node there failed by
-- maintain_job, and that job with it: the caller need not have locked that one.
-- Locks: none of its own, the caller has locked the leaders; then as halt_processes.
-- Returns: what was cancelled, the jobs that it has failed, and the effects.
CREATE FUNCTION fail_jobs(
    LIKE own_arguments,
    p_leader process_key[],
    p_detail text[]
)
RETURNS halted
BY ITEM
AS $$
DECLARE
    v_leaders process_key[];
    v_details text[];
    v_halted  halted;
BEGIN
    SELECT array_agg((j.slot, j.namespace, j.process_id)::process_key), array_agg(i.detail)
    INTO v_leaders, v_details
    FROM unnest(p_leader, p_detail) AS i (slot, namespace, process_id, detail)
    JOIN LATERAL find_job(i.slot, i.namespace, i.process_id) j
        ON j.state = 'running';
    IF v_leaders IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM end_jobs(
        p_now, v_leaders, 'failed', v_details, array_fill(true, ARRAY[cardinality(v_leaders)]));
    v_halted := halt_processes(
        p_now, p_replica_id, p_starvation_timeout, 'error', v_leaders, v_details);
    UPDATE jobs j
    SET upkeep_due_at = p_now
    FROM unnest(v_leaders) AS i
    CROSS JOIN LATERAL find_process(i.slot, i.namespace, i.process_id) p
    WHERE (j.slot, j.namespace, j.process_id) = (i.slot, i.namespace, i.process_id)
        AND p.leader_id IS NOT NULL;
    SELECT jsonb_agg(jsonb_build_array(i.slot, i.namespace, i.process_id))
    INTO v_halted.jobs
    FROM unnest(v_leaders) AS i;
    RETURN v_halted;
END;
$$;
