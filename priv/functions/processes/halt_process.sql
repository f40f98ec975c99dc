-- Ends a process from outside of its steps, if it has not ended: it is in error with the given detail, its queued
-- tasks are cancelled, and a running step finds its lease gone. A job that it leads fails, and its node in a job.
-- Locks: the process and its leader, as lock_with_leader; then as halt_processes and start_nodes.
-- Returns: a verdict (halted, process_not_found, process_has_ended), its unfinished tasks as settle_tasks returns
-- the cancelled ones, and what settle_gates returns.
CREATE FUNCTION halt_process(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_detail     text
)
RETURNS TABLE (verdict text, cancelled jsonb, effects jsonb)
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
        WHEN v_process.status NOT IN ('init', 'running') THEN 'process_has_ended'
        ELSE 'halted'
    END;
    IF verdict <> 'halted' THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_halted := halt_processes(
        v_now, p_replica_id, p_starvation_timeout, 'error', v_key, ARRAY[p_detail]);
    cancelled := v_halted.cancelled -> 0 -> 3;
    effects := v_halted.effects;
    PERFORM end_jobs(v_now, v_key, 'failed', ARRAY[p_detail]);
    effects := merge_json(
        effects, fail_node(v_now, p_replica_id, v_process, 'PROCESS_FAILED', p_detail));
    RETURN NEXT;
END;
$$;
