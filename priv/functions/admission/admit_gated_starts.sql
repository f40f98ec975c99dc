-- Admits starts that carry constraints, as admit_starts does those without, and has them wait for what
-- they name. None is leased: what is available at once is due, and in the row of effects.
-- Locks: as admit_starts, then as settle_gates.
-- Returns: as admit_starts; and one row more, without an item, whose effects are those of admit_gates_batch.
-- Raises a serialization failure for a gate that is not there and comes without a capacity.
CREATE FUNCTION admit_gated_starts(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_args               bytea[],
    p_caller_context     json[],
    p_trace_context      json[],
    p_history_after      bigint[],
    p_history_limit      integer[],
    p_history_backward   boolean[],
    p_idempotency_key    text[],
    p_fingerprint        bytea[],
    p_metadata           jsonb[],
    p_waits              boolean[],
    p_constraints        json[]
)
RETURNS TABLE (
    item integer, verdict text, admitted_at timestamptz, task_id bigint, token bigint,
    task_type task_type, task_status task_status, response bytea, error_code integer,
    error_reason text, error_message text, error_rejected boolean, error_metadata json,
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
    FOR item, verdict, admitted_at, task_id, token, task_type, task_status, response, error_code,
        error_reason, error_message, error_rejected, error_metadata, effects
    IN
        SELECT *
        FROM admit_starts(
            p_now, p_replica_id, p_slot, p_namespace, p_process_id, p_args, p_caller_context,
            p_trace_context, p_history_after, p_history_limit, p_history_backward,
            p_idempotency_key, p_fingerprint, p_metadata, p_waits,
            array_fill(false, ARRAY[cardinality(p_slot)]), NULL)
    LOOP
        v_now := admitted_at;
        IF verdict = 'accepted' THEN
            v_items := array_append(v_items, item);
            v_tasks := array_append(v_tasks, task_id);
        END IF;
        RETURN NEXT;
    END LOOP;
    RETURN QUERY
    SELECT NULL::integer, NULL::text, NULL::timestamptz, NULL::bigint, NULL::bigint,
        NULL::task_type, NULL::task_status, NULL::bytea, NULL::integer, NULL::text, NULL::text,
        NULL::boolean, NULL::json, g.effects
    FROM admit_gates_batch(
        v_now, p_replica_id, p_starvation_timeout, p_slot, p_namespace, p_process_id, v_items, v_tasks,
        p_constraints) AS g (effects)
    WHERE g.effects IS NOT NULL;
END;
$$;
