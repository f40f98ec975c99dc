-- Admits calls and notifies that carry constraints, as admit_requests does those without, and has them
-- wait for what they name. None is leased: what is available at once is due, and in the row of effects.
-- Locks: as admit_requests, then as settle_gates.
-- Returns: as admit_requests; and one row more, without an item, whose effects are those of admit_gates_batch.
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
RETURNS TABLE (
    item integer, verdict text, admitted_at timestamptz, task_id bigint, token bigint, free boolean,
    task_type task_type, task_status task_status, response bytea, error_code integer,
    error_reason text, error_message text, error_rejected boolean, error_metadata json,
    process_status process_status, previous_status process_status, detail text, aux_state bytea,
    metadata jsonb, corrupted_by bigint, created_at timestamptz, status_changed_at timestamptz,
    last_event_id bigint, init_task_id bigint, part json,
    effects jsonb
)
BY INDEX
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_now   timestamptz;
    v_items integer[];
    v_tasks bigint[];
BEGIN
    PERFORM require_gates(p_namespace, p_constraints);
    FOR item, verdict, admitted_at, task_id, token, free, task_type, task_status, response,
        error_code, error_reason, error_message, error_rejected, error_metadata, process_status,
        previous_status, detail, aux_state, metadata, corrupted_by, created_at,
        status_changed_at, last_event_id, init_task_id, part, effects
    IN
        SELECT *
        FROM admit_requests(
            p_now, p_replica_id, p_slot, p_namespace, p_process_id, p_head, p_task_type, p_args,
            p_caller_context, p_trace_context, p_history_after, p_history_limit,
            p_history_backward, p_idempotency_key, p_fingerprint, p_waits,
            array_fill(false, ARRAY[cardinality(p_slot)]), NULL)
    LOOP
        v_now := admitted_at;
        IF verdict = 'accepted' THEN
            v_items := array_append(v_items, item);
            v_tasks := array_append(v_tasks, task_id);
            free := false;
        END IF;
        RETURN NEXT;
    END LOOP;
    RETURN QUERY
    SELECT NULL::integer, NULL::text, NULL::timestamptz, NULL::bigint, NULL::bigint, NULL::boolean,
        NULL::task_type, NULL::task_status, NULL::bytea, NULL::integer, NULL::text, NULL::text,
        NULL::boolean, NULL::json, NULL::process_status, NULL::process_status, NULL::text,
        NULL::bytea, NULL::jsonb, NULL::bigint, NULL::timestamptz, NULL::timestamptz, NULL::bigint,
        NULL::bigint, NULL::json, g.effects
    FROM admit_gates_batch(
        v_now, p_replica_id, p_starvation_timeout, p_slot, p_namespace, p_process_id, v_items, v_tasks,
        p_constraints) AS g (effects)
    WHERE g.effects IS NOT NULL;
END;
$$;
