-- Admits calls, notifies and repairs by the table in domain/admission.py. What is accepted is leased
-- to this replica if the process is free and a worker is reserved, due at once if only the process is
-- free, and in line behind another task otherwise. An accepted request blocks the waiting timer.
-- Locks: processes in key order; then, of those processes alone: tasks, schedule, running.
-- Returns: one row per item, in any order. Process columns come with every process that exists.
CREATE FUNCTION admit_requests(
    p_now              timestamptz,
    p_replica_id       bigint,
    p_slot             smallint[],
    p_namespace        text[],
    p_process_id       text[],
    p_task_type        text[],
    p_args             bytea[],
    p_caller_context   json[],
    p_trace_context    json[],
    p_history_after    bigint[],
    p_history_limit    integer[],
    p_history_backward boolean[],
    p_idempotency_key  text[],
    p_fingerprint      bytea[],
    p_waits            boolean[],
    p_run              boolean[],
    p_expires_after    double precision[]
)
RETURNS TABLE (
    item integer, verdict text, admitted_at timestamptz, task_id bigint, token bigint, free boolean,
    task_type task_type, task_status task_status, response bytea, error_code integer,
    error_reason text, error_message text, error_rejected boolean, error_metadata json,
    process_status process_status, previous_status process_status, detail text, aux_state bytea,
    metadata jsonb, corrupted_by bigint, created_at timestamptz, status_changed_at timestamptz,
    last_event_id bigint, init_task_id bigint
)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz;
    v_locked bigint[];
BEGIN
    WITH locked AS (
        SELECT i.item
        FROM processes p
        JOIN unnest(p_slot, p_namespace, p_process_id)
            WITH ORDINALITY AS i (slot, namespace, process_id, item)
            USING (slot, namespace, process_id)
        ORDER BY p.slot, p.namespace, p.process_id
        FOR NO KEY UPDATE OF p
    )
    SELECT coalesce(array_agg(l.item), '{}')
    INTO v_locked
    FROM locked l;

    -- A clock read after the locks: what is admitted later is not older.
    v_now := coalesce(p_now, clock_timestamp());

    RETURN QUERY
    WITH item AS (
        -- A process that was started since then is not locked: for this request it came too late.
        SELECT i.*, i.item = ANY (v_locked) AS is_locked
        FROM unnest(
            p_slot, p_namespace, p_process_id, p_task_type, p_args, p_caller_context,
            p_trace_context, p_history_after, p_history_limit, p_history_backward,
            p_idempotency_key, p_fingerprint, p_waits, p_run, p_expires_after
        ) WITH ORDINALITY AS i (
            slot, namespace, process_id, task_type, args, caller_context,
            trace_context, history_after, history_limit, history_backward,
            idempotency_key, fingerprint, waits, run, expires_after, item
        )
    ),
    fact AS MATERIALIZED (
        SELECT i.*, k.task_id AS known_task_id,
            r.task_id IS NULL AND ahead.task_id IS NULL AS is_free,
            CASE
                WHEN NOT i.is_locked AND n.name IS NULL THEN 'namespace_not_found'
                WHEN NOT i.is_locked THEN 'process_not_found'
                WHEN k.task_id IS NOT NULL
                    AND k.fingerprint = i.fingerprint
                    AND k.task_type = i.task_type::task_type THEN 'duplicate'
                WHEN k.task_id IS NOT NULL THEN 'key_reused'
                WHEN p.status = 'finished' THEN 'process_finished'
                WHEN i.task_type = 'repair' AND p.status <> 'error' THEN 'process_is_running'
                WHEN i.task_type <> 'repair' AND p.status = 'error' THEN 'process_failed'
                ELSE 'accepted'
            END AS verdict
        FROM item i
        LEFT JOIN namespaces n ON n.name = i.namespace
        LEFT JOIN processes p USING (slot, namespace, process_id)
        LEFT JOIN running r USING (slot, namespace, process_id)
        LEFT JOIN LATERAL (
            SELECT s.task_id
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (i.slot, i.namespace, i.process_id)
                AND s.task_type NOT IN ('timeout', 'remove')
            ORDER BY s.slot, s.namespace, s.process_id, s.task_id
            LIMIT 1
        ) ahead ON true
        LEFT JOIN tasks k
            ON (k.slot, k.namespace, k.process_id, k.idempotency_key)
             = (i.slot, i.namespace, i.process_id, i.idempotency_key)
    ),
    admitted AS MATERIALIZED (
        SELECT f.*, f.is_free AND f.run AS runs, nextval('task_ids') AS task_id,
            CASE WHEN f.is_free AND f.run THEN nextval('lease_tokens') END AS token
        FROM fact f
        WHERE f.verdict = 'accepted'
    ),
    recorded AS (
        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, first_started_at, started_at, token, history_after, history_limit,
            history_backward, args, caller_context, trace_context, idempotency_key, fingerprint,
            reply_to
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, a.task_type::task_type,
            CASE WHEN a.runs THEN 'running' ELSE 'waiting' END::task_status, a.runs::integer, v_now,
            CASE WHEN a.is_free THEN v_now END, CASE WHEN a.runs THEN v_now END,
            CASE WHEN a.runs THEN v_now END, a.token, a.history_after, a.history_limit,
            a.history_backward, a.args, a.caller_context, a.trace_context, a.idempotency_key,
            a.fingerprint, CASE WHEN a.waits AND NOT a.runs THEN ARRAY[p_replica_id] END
        FROM admitted a
    ),
    leased AS (
        INSERT INTO running (
            slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
            leased_at, expires_at
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, a.task_type::task_type, 1, a.token,
            p_replica_id, v_now, v_now + make_interval(secs => a.expires_after)
        FROM admitted a
        WHERE a.runs
    ),
    scheduled AS (
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, a.task_type::task_type, 'waiting',
            CASE WHEN a.is_free THEN v_now END, p_replica_id
        FROM admitted a
        WHERE NOT a.runs
    ),
    blocked AS (
        UPDATE schedule s
        SET status = 'blocked'
        FROM admitted a
        WHERE (s.slot, s.namespace, s.process_id) = (a.slot, a.namespace, a.process_id)
            AND s.task_type IN ('timeout', 'remove')
            AND s.status = 'waiting'
    ),
    joined AS (
        UPDATE tasks t
        SET reply_to = array_append(t.reply_to, p_replica_id)
        FROM fact f
        WHERE f.verdict = 'duplicate' AND f.waits
            AND (t.slot, t.namespace, t.process_id, t.task_id)
              = (f.slot, f.namespace, f.process_id, f.known_task_id)
            AND t.status NOT IN ('finished', 'error', 'cancelled')
            AND (t.reply_to IS NULL OR p_replica_id <> ALL (t.reply_to))
    )
    SELECT f.item::integer, f.verdict, v_now, coalesce(a.task_id, t.task_id), a.token, f.is_free,
        coalesce(t.task_type, f.task_type::task_type), t.status, t.response, t.error_code,
        t.error_reason, t.error_message, t.error_rejected, t.error_metadata,
        p.status, p.previous_status, p.detail, p.aux_state, p.metadata, p.corrupted_by,
        p.created_at, p.status_changed_at, p.last_event_id, p.init_task_id
    FROM fact f
    LEFT JOIN admitted a USING (item)
    LEFT JOIN tasks t
        ON f.verdict = 'duplicate'
        AND (t.slot, t.namespace, t.process_id, t.task_id)
          = (f.slot, f.namespace, f.process_id, f.known_task_id)
    LEFT JOIN processes p
        ON (p.slot, p.namespace, p.process_id) = (f.slot, f.namespace, f.process_id);
END;
$$;
