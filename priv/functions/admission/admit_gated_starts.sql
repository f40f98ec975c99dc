-- Admits starts with constraints, as admit_starts does those without, and lets them wait for what they name. None
-- is leased, so p_run is false: what is available at once is due, and in the row of effects.
-- Locks: as admit_starts, then as settle_gates.
-- Returns: as admit_starts; and one row more, without an item, whose effects are those of settle_gates.
-- Raises a serialization failure for a gate that does not exist and has no capacity in the request.
CREATE FUNCTION admit_gated_starts(
    LIKE admit_starts,
    p_starvation_timeout double precision,
    p_constraints        json[]
)
RETURNS SETOF admitted_start
BY INDEX
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_row   admitted_start;
    v_now   timestamptz;
    v_tasks bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_slot)]);  -- by item
BEGIN
    PERFORM require_gates(p_namespace, p_constraints);
    FOR v_row IN
        SELECT *
        FROM admit_starts(
            p_now, p_replica_id, p_slot, p_namespace, p_process_id, p_args, p_caller_context,
            p_trace_context, p_history_after, p_history_limit, p_history_backward,
            p_idempotency_key, p_fingerprint, p_metadata, p_waits,
            p_run, p_expires_after, p_sender, p_open_max)
    LOOP
        v_now := v_row.admitted_at;
        IF v_row.verdict = 'accepted' THEN
            v_tasks[v_row.item] := v_row.task_id;
        END IF;
        RETURN NEXT v_row;
    END LOOP;
    v_row := NULL;
    v_row.effects := apply_constraints(
        v_now, p_replica_id, p_starvation_timeout, p_slot, p_namespace, p_process_id, v_tasks,
        p_constraints);
    IF v_row.effects IS NOT NULL THEN
        RETURN NEXT v_row;
    END IF;
END;
$$;
