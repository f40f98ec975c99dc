-- Finds the first due tasks of processes that have recovered from an error, after their held tasks were released,
-- and evaluates the constraints of their gated tasks again.
-- Locks: none of its own; the caller has locked the processes. For gated processes: as settle_gates.
-- Returns: the effects, as settle_gates returns them; null: none.
CREATE FUNCTION describe_recovered(LIKE own_arguments, p_key process_key[])
RETURNS jsonb
BY KEY
AS $$
DECLARE
    v_process record;
    v_gated   process_key[];
    v_effects jsonb;
BEGIN
    FOR v_process IN
        SELECT k.slot, k.namespace, k.process_id, p.is_gated
        FROM unnest(p_key) AS k
        CROSS JOIN LATERAL find_process(k.slot, k.namespace, k.process_id) p
    LOOP
        IF v_process.is_gated THEN
            v_gated := v_gated
                || (v_process.slot, v_process.namespace, v_process.process_id)::process_key;
        ELSE
            v_effects := merge_json(v_effects, describe_first_task(
                p_now, v_process.slot, v_process.namespace, v_process.process_id));
        END IF;
    END LOOP;
    IF v_gated IS NOT NULL THEN
        v_effects := merge_json(v_effects, settle_gates(
            p_now, p_replica_id, p_starvation_timeout, 100, v_gated));
    END IF;
    RETURN v_effects;
END;
$$;
