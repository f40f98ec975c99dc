-- Applies the constraints of tasks that were just scheduled, if they have any, and promotes those that need not
-- wait: what admit_gates_batch does for admissions.
-- Locks: as settle_gates; the caller has locked the processes.
-- Returns: what settle_gates returns, in the form of settle_gates_batch; tasks without constraints are returned as due
-- now. Null if there is nothing.
CREATE FUNCTION apply_constraints(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_task_id            bigint[],
    p_constraints        json[]
)
RETURNS jsonb
AS $$
DECLARE
    v_gated record;
    v_told  jsonb;
    v_due   jsonb;
BEGIN
    SELECT array_agg(t.slot) FILTER (WHERE t.constraints IS NOT NULL) AS slot,
        array_agg(t.namespace) FILTER (WHERE t.constraints IS NOT NULL) AS namespace,
        array_agg(t.process_id) FILTER (WHERE t.constraints IS NOT NULL) AS process_id,
        array_agg(t.task_id) FILTER (WHERE t.constraints IS NOT NULL) AS task_id,
        array_agg(t.constraints) FILTER (WHERE t.constraints IS NOT NULL) AS constraints,
        jsonb_agg(jsonb_build_array(
            t.namespace, t.process_id, t.task_id, NULL, NULL, NULL, NULL, NULL))
            FILTER (WHERE t.constraints IS NULL) AS due
    INTO v_gated
    FROM unnest(p_slot, p_namespace, p_process_id, p_task_id, p_constraints)
        AS t (slot, namespace, process_id, task_id, constraints);
    v_due := v_gated.due;
    IF v_gated.slot IS NULL THEN
        RETURN v_due;
    END IF;
    PERFORM constrain_tasks(
        p_now, p_replica_id, v_gated.slot, v_gated.namespace, v_gated.process_id,
        v_gated.task_id, v_gated.constraints);
    SELECT jsonb_agg(jsonb_build_array(
        g.namespace, g.process_id, g.task_id, g.gate, g.queue, g.order_key,
        g.wait_seconds, g.due_seconds))
    INTO v_told
    FROM settle_gates(
        p_now, p_replica_id, p_starvation_timeout, 100, v_gated.slot, v_gated.namespace,
        v_gated.process_id, v_gated.task_id) g;
    IF v_due IS NULL OR v_told IS NULL THEN
        RETURN coalesce(v_due, v_told);
    END IF;
    RETURN v_due || v_told;
END;
$$;
