-- Fails jobs as a whole, those that run: what has not been started fails at once; what runs ends its step and
-- goes no further (stop_nodes); the leader breaks. A leader that follows in another job has its node there
-- failed by maintain_job, and that job with it: the caller need not have locked that one.
-- Locks: none of its own, the caller has locked the leaders; then as halt_processes.
-- Returns: as halt_processes; and a row with a key alone of each job that it has failed.
CREATE FUNCTION fail_jobs(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_detail             text[]
)
RETURNS TABLE (slot smallint, namespace text, process_id text, cancelled jsonb, effects jsonb)
BY INDEX
SET enable_memoize = off
AS $$
DECLARE
    v_jobs record;
BEGIN
    SELECT array_agg(j.slot) AS slots, array_agg(j.namespace) AS spaces,
        array_agg(j.process_id) AS ids, array_agg(i.detail) AS details
    INTO v_jobs
    FROM unnest(p_slot, p_namespace, p_process_id, p_detail)
        AS i (slot, namespace, process_id, detail)
    CROSS JOIN LATERAL (
        SELECT j.slot, j.namespace, j.process_id
        FROM jobs j
        WHERE (j.slot, j.namespace, j.process_id) = (i.slot, i.namespace, i.process_id)
            AND j.state = 'running'
        OFFSET 0
    ) j;
    IF v_jobs.slots IS NULL THEN
        RETURN;
    END IF;
    PERFORM end_jobs(
        p_now, v_jobs.slots, v_jobs.spaces, v_jobs.ids,
        array_fill('failed'::job_state, ARRAY[cardinality(v_jobs.slots)]), v_jobs.details,
        array_fill(true, ARRAY[cardinality(v_jobs.slots)]));
    RETURN QUERY
    SELECT h.slot, h.namespace, h.process_id, h.cancelled, h.effects
    FROM halt_processes(
        p_now, p_replica_id, p_starvation_timeout, 'error', v_jobs.slots, v_jobs.spaces, v_jobs.ids,
        v_jobs.details) h;
    UPDATE jobs j
    SET upkeep_due_at = p_now
    FROM unnest(v_jobs.slots, v_jobs.spaces, v_jobs.ids) AS i (slot, namespace, process_id)
    CROSS JOIN LATERAL (
        SELECT p.leader_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
        OFFSET 0
    ) p
    WHERE (j.slot, j.namespace, j.process_id) = (i.slot, i.namespace, i.process_id)
        AND p.leader_id IS NOT NULL;
    RETURN QUERY
    SELECT i.slot, i.namespace, i.process_id, NULL::jsonb, NULL::jsonb
    FROM unnest(v_jobs.slots, v_jobs.spaces, v_jobs.ids) AS i (slot, namespace, process_id);
END;
$$;
