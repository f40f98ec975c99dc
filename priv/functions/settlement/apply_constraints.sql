-- Applies the constraints of tasks that were just admitted or scheduled, if they have any, and promotes those that
-- need not wait. Items without a task are left out.
-- Locks: as settle_gates; the caller has locked the processes.
-- Returns: what settle_gates returns; tasks without constraints are returned as due now. Null if there is nothing.
CREATE FUNCTION apply_constraints(
    LIKE own_arguments,
    p_slot        smallint[],
    p_namespace   text[],
    p_process_id  text[],
    p_task_id     bigint[],
    p_constraints json[]
)
RETURNS jsonb
AS $$
DECLARE
    v_gated record;
BEGIN
    SELECT array_agg((t.slot, t.namespace, t.process_id)::process_key)
            FILTER (WHERE t.constraints IS NOT NULL) AS key,
        array_agg(t.task_id) FILTER (WHERE t.constraints IS NOT NULL) AS task_id,
        array_agg(t.constraints) FILTER (WHERE t.constraints IS NOT NULL) AS constraints,
        jsonb_agg(jsonb_build_array(t.namespace, t.process_id, t.task_id))
            FILTER (WHERE t.constraints IS NULL) AS due
    INTO v_gated
    FROM unnest(p_slot, p_namespace, p_process_id, p_task_id, p_constraints)
        AS t (slot, namespace, process_id, task_id, constraints)
    WHERE t.task_id IS NOT NULL;
    IF v_gated.key IS NULL THEN
        RETURN v_gated.due;
    END IF;
    PERFORM constrain_tasks(
        p_now, p_replica_id, v_gated.key, v_gated.task_id, v_gated.constraints);
    RETURN merge_json(v_gated.due, settle_gates(
        p_now, p_replica_id, p_starvation_timeout, 100, v_gated.key, v_gated.task_id));
END;
$$;
