-- Imports a process in a given state with its history and timers (read_timer_changes). A finished init task stands for the import and
-- owns the imported events.
-- Locks: the process (inserted, or the existing one).
-- Returns: a verdict of domain/processes/admission.py, the init task, the earliest timer's task and due time, and now.
CREATE FUNCTION put_process(
    p_now               timestamptz,
    p_replica_id        bigint,
    p_slot              smallint,
    p_namespace         text,
    p_process_id        text,
    p_status            text,
    p_previous_status   text,
    p_detail            text,
    p_corrupted_by_type text,
    p_aux_state         bytea,
    p_metadata          jsonb,
    p_created_at        timestamptz,
    p_status_changed_at timestamptz,
    p_result            bytea,
    p_idempotency_key   text,
    p_fingerprint       bytea,
    p_timers            json,
    e_payload           bytea[],
    e_format_version    integer[],
    e_metadata          json[],
    e_occurred_at       timestamptz[],
    p_state_version     integer,
    p_failure           json,
    p_audit             text
)
RETURNS TABLE (
    verdict text, task_id bigint, timer_task_id bigint, timer_due_at timestamptz, told_at timestamptz
)
BY KEY
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_task_id bigint := nextval('task_ids');
    v_broken  bigint := CASE WHEN p_corrupted_by_type IS NOT NULL THEN nextval('task_ids') END;
    v_count   integer := cardinality(e_payload);
    v_known   tasks%ROWTYPE;
    v_broken_at timestamptz := CASE WHEN p_status = 'error' THEN coalesce(p_status_changed_at, v_now) END;
BEGIN
    told_at := v_now;
    INSERT INTO processes (
        slot, namespace, process_id, status, previous_status, detail, aux_state, metadata,
        corrupted_by, created_at, status_changed_at, last_event_id, init_task_id, result,
        finished_at, state_version, broken_at, failure_id, failure_reason
    )
    SELECT p_slot, p_namespace, p_process_id, p_status::process_status,
        p_previous_status::process_status, p_detail, p_aux_state, p_metadata, v_broken,
        coalesce(p_created_at, v_now), coalesce(p_status_changed_at, v_now), v_count, v_task_id,
        p_result,
        CASE WHEN p_status = 'finished' THEN coalesce(p_status_changed_at, v_now) END,
        p_state_version, v_broken_at,
        CASE WHEN v_broken_at IS NOT NULL THEN make_failure_id(
            p_namespace, 'IMPORTED', p_failure) END,
        CASE WHEN v_broken_at IS NOT NULL THEN 'IMPORTED' END
    WHERE EXISTS (SELECT FROM namespaces n WHERE n.name = p_namespace)
    ON CONFLICT DO NOTHING;

    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM namespaces n WHERE n.name = p_namespace) THEN
            verdict := 'namespace_not_found';
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT *
        INTO v_known
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.idempotency_key)
            = (p_slot, p_namespace, p_process_id, p_idempotency_key);
        verdict := CASE
            WHEN NOT FOUND THEN 'process_already_exists'
            WHEN v_known.fingerprint = p_fingerprint THEN 'duplicate'
            ELSE 'key_reused'
        END;
        task_id := v_known.task_id;
        RETURN NEXT;
        RETURN;
    END IF;

    PERFORM count_changes(ARRAY[(p_namespace, NULL, p_status)::status_change]);
    PERFORM write_audit(p_audit, NULL, jsonb_build_object('status', p_status, 'task_id', v_task_id));
    verdict := 'accepted';
    task_id := v_task_id;
    INSERT INTO tasks (
        slot, namespace, process_id, task_id, task_type, status, created_at, finished_at,
        idempotency_key, fingerprint, first_event_id, event_count
    ) VALUES (
        p_slot, p_namespace, p_process_id, v_task_id, 'init', 'finished', v_now, v_now,
        p_idempotency_key, p_fingerprint, CASE WHEN v_count > 0 THEN 1 END, v_count
    );
    INSERT INTO events (
        slot, namespace, process_id, event_id, task_id, occurred_at, format_version, payload, metadata
    )
    SELECT p_slot, p_namespace, p_process_id, e.event_id, v_task_id,
        coalesce(e.occurred_at, v_now), e.format_version, e.payload, e.metadata
    FROM unnest(e_payload, e_format_version, e_metadata, e_occurred_at)
        WITH ORDINALITY AS e (payload, format_version, metadata, occurred_at, event_id);

    IF v_broken IS NOT NULL THEN
        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, finished_at, error_code, error_reason, error_message, error_rejected
        ) VALUES (
            p_slot, p_namespace, p_process_id, v_broken, p_corrupted_by_type::task_type, 'error', 1,
            v_now, v_now, v_now, 2, 'IMPORTED', p_detail, false
        );
    END IF;

    IF v_broken_at IS NOT NULL THEN
        PERFORM note_failures(
            ARRAY[p_namespace], ARRAY[p_process_id], ARRAY[v_broken_at], ARRAY['IMPORTED'], ARRAY[p_failure]);
    END IF;

    IF p_timers IS NOT NULL THEN
        PERFORM insert_timers(v_now, p_replica_id, ARRAY(
            SELECT c
            FROM read_timer_changes(v_now, 1, p_slot, p_namespace, p_process_id, p_timers) AS c));
        PERFORM enqueue_first_task(v_now, p_slot, p_namespace, p_process_id);
        SELECT f.task_id, f.due_at
        INTO timer_task_id, timer_due_at
        FROM find_first_task(p_slot, p_namespace, p_process_id) f;
    END IF;
    RETURN NEXT;
END;
$$;
