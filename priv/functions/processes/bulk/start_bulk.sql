-- Starts a bulk operation: the process that runs it, and the record of what it does, in one transaction. The same
-- request again finds the first one by its fingerprint.
-- Locks: as admit_starts.
-- Returns: a verdict of domain/processes/admission.py, and the init task.
CREATE FUNCTION start_bulk(
    LIKE own_arguments,
    p_slot             smallint,
    p_namespace        text,
    p_operation_id     text,
    p_fingerprint      bytea,
    p_trace_context    json,
    p_kind             text,
    p_filter           jsonb,
    p_args             bytea,
    p_reason           text,
    p_author           text,
    p_rate_max         integer,
    p_failed_share_max double precision,
    p_failed_window    integer,
    p_follow           boolean,
    p_audit            text,
    OUT verdict text,
    OUT task_id bigint
)
AS $$
DECLARE
    v_started admitted_start;
BEGIN
    IF EXISTS (SELECT FROM bulk_operations o WHERE o.operation_id = p_operation_id)
        AND NOT EXISTS (SELECT FROM find_process(p_slot, p_namespace, p_operation_id))
    THEN
        verdict := 'key_reused';  -- delete_bulk has not deleted all of it yet
        RETURN;
    END IF;
    SELECT *
    INTO v_started
    FROM admit_starts(
        p_now => p_now, p_replica_id => p_replica_id,
        p_slot => ARRAY[p_slot], p_namespace => ARRAY[p_namespace],
        p_process_id => ARRAY[p_operation_id], p_args => ARRAY[convert_to(p_kind, 'UTF8')],
        p_caller_context => ARRAY[NULL::json], p_trace_context => ARRAY[p_trace_context],
        p_history_after => ARRAY[NULL::bigint], p_history_limit => ARRAY[NULL::integer],
        p_history_backward => ARRAY[NULL::boolean],
        p_idempotency_key => ARRAY[p_operation_id], p_fingerprint => ARRAY[p_fingerprint],
        p_metadata => ARRAY[jsonb_build_object('kind', p_kind, 'author', p_author, 'reason', p_reason)],
        p_waits => ARRAY[false], p_run => ARRAY[false], p_expires_after => ARRAY[0::double precision],
        p_sender => NULL, p_open_max => NULL);
    IF v_started.verdict = 'accepted' THEN
        INSERT INTO bulk_operations (
            operation_id, slot, kind, filter, args, reason, author, rate_max, failed_share_max,
            failed_window, follow, created_at, updated_at, snapshot
        ) VALUES (
            p_operation_id, p_slot, p_kind, p_filter, p_args, p_reason, p_author, p_rate_max,
            p_failed_share_max, p_failed_window, p_follow, v_started.admitted_at, v_started.admitted_at,
            pg_current_snapshot()
        );
        PERFORM write_audit(p_audit, NULL, jsonb_build_object(
            'kind', p_kind, 'filter', p_filter, 'rate_max', p_rate_max, 'follow', p_follow));
    END IF;
    verdict := v_started.verdict;
    task_id := v_started.task_id;
END;
$$;
