-- Admits starts: creates the process and its init task, leased to the replica where it has reserved
-- a worker, due at once otherwise. A start of an existing process is looked up by its idempotency
-- key.
-- Locks: processes (inserted in key order; existing ones in key order).
-- Returns: one row per item, in any order.
CREATE FUNCTION admit_starts(
    p_now              timestamptz,
    p_replica_id       bigint,
    p_slot             smallint[],
    p_namespace        text[],
    p_process_id       text[],
    p_args             bytea[],
    p_caller_context   json[],
    p_trace_context    json[],
    p_history_after    bigint[],
    p_history_limit    integer[],
    p_history_backward boolean[],
    p_idempotency_key  text[],
    p_fingerprint      bytea[],
    p_metadata         jsonb[],
    p_waits            boolean[],
    p_run              boolean[],
    p_expires_after    double precision[]
)
RETURNS TABLE (
    item integer, verdict text, admitted_at timestamptz, task_id bigint, token bigint,
    task_type task_type, task_status task_status, response bytea, error_code integer,
    error_reason text, error_message text, error_rejected boolean, error_metadata json
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
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_items   bigint[];
    v_ids     bigint[];
    v_tokens  bigint[];
    v_locked  bigint[];
BEGIN
    WITH item AS (
        SELECT i.*
        FROM unnest(
            p_slot, p_namespace, p_process_id, p_args, p_caller_context, p_trace_context,
            p_history_after, p_history_limit, p_history_backward, p_idempotency_key,
            p_fingerprint, p_metadata, p_waits, p_run, p_expires_after
        ) WITH ORDINALITY AS i (
            slot, namespace, process_id, args, caller_context, trace_context,
            history_after, history_limit, history_backward, idempotency_key,
            fingerprint, metadata, waits, run, expires_after, item
        )
    ),
    created AS (
        INSERT INTO processes AS p (
            slot, namespace, process_id, status, metadata, created_at, status_changed_at, init_task_id
        )
        SELECT i.slot, i.namespace, i.process_id, 'init', i.metadata, v_now, v_now, nextval('task_ids')
        FROM item i
        WHERE EXISTS (SELECT FROM namespaces n WHERE n.name = i.namespace)
        ORDER BY i.slot, i.namespace, i.process_id
        ON CONFLICT DO NOTHING
        RETURNING p.slot, p.namespace, p.process_id, p.init_task_id
    ),
    admitted AS MATERIALIZED (
        SELECT i.*, c.init_task_id AS task_id,
            CASE WHEN i.run THEN nextval('lease_tokens') END AS token
        FROM item i
        JOIN created c USING (slot, namespace, process_id)
    ),
    recorded AS (
        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, first_started_at, started_at, token, history_after, history_limit,
            history_backward, args, caller_context, trace_context, idempotency_key, fingerprint,
            reply_to
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, 'init',
            CASE WHEN a.run THEN 'running' ELSE 'waiting' END::task_status, a.run::integer, v_now,
            v_now, CASE WHEN a.run THEN v_now END, CASE WHEN a.run THEN v_now END, a.token,
            a.history_after, a.history_limit, a.history_backward, a.args, a.caller_context,
            a.trace_context, a.idempotency_key, a.fingerprint,
            CASE WHEN a.waits AND NOT a.run THEN ARRAY[p_replica_id] END
        FROM admitted a
    ),
    leased AS (
        INSERT INTO running (
            slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
            leased_at, expires_at
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, 'init', 1, a.token, p_replica_id,
            v_now, v_now + make_interval(secs => a.expires_after)
        FROM admitted a
        WHERE a.run
    ),
    scheduled AS (
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, 'init', 'waiting', v_now, p_replica_id
        FROM admitted a
        WHERE NOT a.run
    )
    SELECT array_agg(a.item), array_agg(a.task_id), array_agg(a.token)
    INTO v_items, v_ids, v_tokens
    FROM admitted a;

    RETURN QUERY
    SELECT a.item::integer, 'accepted'::text, v_now, a.task_id, a.token, 'init'::task_type,
        CASE WHEN a.token IS NULL THEN 'waiting' ELSE 'running' END::task_status, NULL::bytea,
        NULL::integer, NULL::text, NULL::text, NULL::boolean, NULL::json
    FROM unnest(v_items, v_ids, v_tokens) AS a (item, task_id, token);

    IF cardinality(v_items) = cardinality(p_slot) THEN
        RETURN;
    END IF;

    -- Some exist already, or their namespace does not. Lock them, then look with a new snapshot.
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

    RETURN QUERY
    WITH item AS (
        SELECT i.*
        FROM unnest(
            p_slot, p_namespace, p_process_id, p_idempotency_key, p_fingerprint, p_waits
        ) WITH ORDINALITY AS i (
            slot, namespace, process_id, idempotency_key, fingerprint, waits, item
        )
    ),
    known AS MATERIALIZED (
        SELECT i.*, p.init_task_id, k.task_id AS known_task_id,
            CASE
                WHEN i.item <> ALL (v_locked) AND n.name IS NULL THEN 'namespace_not_found'
                -- Removed meanwhile, and perhaps started anew by somebody else: not locked by us.
                WHEN i.item <> ALL (v_locked) THEN 'gone'
                WHEN k.task_id IS NULL THEN 'process_already_exists'
                WHEN k.fingerprint = i.fingerprint AND k.task_type = 'init' THEN 'duplicate'
                ELSE 'key_reused'
            END AS verdict
        FROM item i
        LEFT JOIN namespaces n ON n.name = i.namespace
        LEFT JOIN processes p USING (slot, namespace, process_id)
        LEFT JOIN tasks k
            ON (k.slot, k.namespace, k.process_id, k.idempotency_key)
             = (p.slot, p.namespace, p.process_id, i.idempotency_key)
        WHERE i.item <> ALL (coalesce(v_items, '{}'))
    ),
    joined AS (
        UPDATE tasks t
        SET reply_to = array_append(t.reply_to, p_replica_id)
        FROM known k
        WHERE k.verdict = 'duplicate' AND k.waits
            AND (t.slot, t.namespace, t.process_id, t.task_id)
              = (k.slot, k.namespace, k.process_id, k.known_task_id)
            AND t.status NOT IN ('finished', 'error', 'cancelled')
            AND (t.reply_to IS NULL OR p_replica_id <> ALL (t.reply_to))
    )
    SELECT k.item::integer, k.verdict, v_now,
        CASE WHEN k.verdict = 'duplicate' THEN k.known_task_id END, NULL::bigint, t.task_type,
        t.status, t.response, t.error_code, t.error_reason, t.error_message, t.error_rejected,
        t.error_metadata
    FROM known k
    LEFT JOIN tasks t
        ON k.verdict = 'duplicate'
        AND (t.slot, t.namespace, t.process_id, t.task_id)
          = (k.slot, k.namespace, k.process_id, k.known_task_id);
END;
$$;
