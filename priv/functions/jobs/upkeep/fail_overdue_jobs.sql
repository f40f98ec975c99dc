-- Fails jobs whose deadline has passed: the leader breaks, whatever it runs, and maintain_job stops its followers. A
-- locked one is left to the next call.
-- Locks: the leaders, and the leaders of the jobs that these follow in, in key order; then as halt_processes and
-- start_nodes.
-- Returns: the keys of the jobs; the cancelled tasks of their leaders, with their keys; and the effects, as
-- settle_gates returns them.
CREATE FUNCTION fail_overdue_jobs(
    LIKE own_arguments,
    p_limit integer,
    OUT failed    jsonb,
    OUT cancelled jsonb,
    OUT effects   jsonb
)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_due    process_key[];  -- jobs that are due
    v_outer  process_key[];  -- the leaders of the jobs that their leaders follow in
    v_key    process_key[];
    v_held   boolean[];  -- of those, and then of these
    v_leader processes%ROWTYPE;
    v_halted halted;
BEGIN
    SELECT array_agg((j.slot, j.namespace, j.process_id)::process_key),
        array_agg((p.leader_slot, p.leader_namespace, p.leader_id)::process_key)
    INTO v_due, v_outer
    FROM (
        SELECT j.slot, j.namespace, j.process_id
        FROM jobs j
        WHERE j.state = 'running' AND j.deadline_at <= v_now
        ORDER BY j.deadline_at
        LIMIT p_limit
    ) j
    JOIN processes p USING (slot, namespace, process_id);
    IF v_due IS NULL THEN
        RETURN;
    END IF;
    v_held := lock_or_skip(v_due || v_outer);

    FOR v_leader IN
        SELECT p.*
        FROM unnest(v_due) WITH ORDINALITY AS i (slot, namespace, process_id, item)
        JOIN jobs j USING (slot, namespace, process_id)
        JOIN processes p USING (slot, namespace, process_id)
        WHERE j.state = 'running'
            AND j.deadline_at <= v_now
            AND NOT v_held[i.item]
            AND NOT v_held[i.item + cardinality(v_due)]
    LOOP
        v_key := ARRAY[(v_leader.slot, v_leader.namespace, v_leader.process_id)::process_key];
        PERFORM end_jobs(v_now, v_key, 'failed', ARRAY['DEADLINE_EXCEEDED']);
        failed := coalesce(failed, '[]') || jsonb_build_array(jsonb_build_array(
            v_leader.slot, v_leader.namespace, v_leader.process_id));
        v_halted := merge_halted(v_halted, halt_processes(
            v_now, p_replica_id, p_starvation_timeout, 'error', v_key,
            ARRAY['DEADLINE_EXCEEDED']));
        v_halted.effects := merge_json(v_halted.effects, fail_node(
            v_now, p_replica_id, v_leader, 'DEADLINE_EXCEEDED',
            'the deadline of its job has passed'));
    END LOOP;
    cancelled := v_halted.cancelled;
    effects := v_halted.effects;
END;
$$;
