-- Admits calls and notifies that carry constraints, as admit_requests does those without, and has them
-- wait for what they name. None is leased: what is available at once is due, and in the row of effects.
-- Locks: as admit_requests, then as settle_gates.
-- Returns: as admit_requests; and one row more, without an item, whose effects are those of settle_gates.
-- Raises a serialization failure for a gate that is not there and comes without a capacity.
CREATE FUNCTION admit_gated_requests(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_head               integer[],
    p_task_type          text[],
    p_args               bytea[],
    p_caller_context     json[],
    p_trace_context      json[],
    p_history_after      bigint[],
    p_history_limit      integer[],
    p_history_backward   boolean[],
    p_idempotency_key    text[],
    p_fingerprint        bytea[],
    p_waits              boolean[],
    p_constraints        json[]
)
RETURNS SETOF admitted_request
BY INDEX
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_row   admitted_request;
    v_now   timestamptz;
    v_items integer[];
    v_tasks bigint[];
BEGIN
    PERFORM require_gates(p_namespace, p_constraints);
    FOR v_row IN
        SELECT *
        FROM admit_requests(
            p_now, p_replica_id, p_slot, p_namespace, p_process_id, p_head, p_task_type, p_args,
            p_caller_context, p_trace_context, p_history_after, p_history_limit,
            p_history_backward, p_idempotency_key, p_fingerprint, p_waits,
            array_fill(false, ARRAY[cardinality(p_slot)]), NULL)
    LOOP
        v_now := v_row.admitted_at;
        IF v_row.verdict = 'accepted' THEN
            v_items := array_append(v_items, v_row.item);
            v_tasks := array_append(v_tasks, v_row.task_id);
            v_row.free := false;
        END IF;
        RETURN NEXT v_row;
    END LOOP;
    IF v_items IS NULL THEN
        RETURN;
    END IF;
    v_row := NULL;
    SELECT apply_constraints(
        v_now, p_replica_id, p_starvation_timeout, array_agg(p_slot[i.item] ORDER BY i.place),
        array_agg(p_namespace[i.item] ORDER BY i.place),
        array_agg(p_process_id[i.item] ORDER BY i.place), v_tasks,
        array_agg(p_constraints[i.item] ORDER BY i.place))
    INTO v_row.effects
    FROM unnest(v_items) WITH ORDINALITY AS i (item, place);
    IF v_row.effects IS NOT NULL THEN
        RETURN NEXT v_row;
    END IF;
END;
$$;
