-- Admits starts: creates the process and its init task, leased to the replica where it has reserved a worker, due
-- at once otherwise. A start of an existing process is looked up by its idempotency key, and so is one of a process
-- that is gone and has left its answer. At most one item per process. p_open_max is the quota of the namespace of each
-- item; null: none.
-- Locks: with p_open_max as leave_room; then processes (inserted in key order; existing ones in key order).
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
    p_expires_after    double precision[],
    p_sender           json[],
    p_open_max         bigint[]
)
RETURNS SETOF admitted_start
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now       timestamptz := coalesce(p_now, clock_timestamp());
    v_size      integer := cardinality(p_slot);
    v_task_ids  bigint[];  -- by item; null where the process was there before
    v_tokens    bigint[];
    v_created   integer;
    v_run_count integer;
    v_item      integer;
    v_is_locked boolean[];
    v_is_known  boolean[];  -- created, and taken back: an answer was left under its key
    v_known     record;
    v_repeated  integer[];
BEGIN
    IF p_open_max IS NOT NULL THEN
        p_namespace := leave_room(p_slot, p_namespace, p_process_id, p_idempotency_key, p_open_max);
    END IF;

    FOR n IN 1 .. v_size LOOP
        v_task_ids[n] := nextval('task_ids');
        v_tokens[n] := CASE WHEN p_run[n] THEN nextval('lease_tokens') END;
    END LOOP;

    INSERT INTO processes (
        slot, namespace, process_id, status, metadata, created_at, status_changed_at, init_task_id
    )
    SELECT i.slot, i.namespace, i.process_id, 'init', i.metadata, v_now, v_now, i.task_id
    FROM (
        SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
            unnest(p_process_id) AS process_id, unnest(p_metadata) AS metadata,
            unnest(v_task_ids) AS task_id
    ) i
    WHERE i.namespace = ANY (
        ARRAY(SELECT n.name FROM namespaces n WHERE n.name = ANY (p_namespace))
    )
    ORDER BY i.slot, i.namespace, i.process_id
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_created = ROW_COUNT;

    IF v_created < v_size THEN
        -- Those that we have just created bear the ids that we have just drawn.
        SELECT array_agg(p.init_task_id ORDER BY i.item),
            array_agg(CASE WHEN p.init_task_id IS NOT NULL THEN i.token END ORDER BY i.item)
        INTO v_task_ids, v_tokens
        FROM (
            SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                unnest(p_namespace) AS namespace, unnest(p_process_id) AS process_id,
                unnest(v_task_ids) AS task_id, unnest(v_tokens) AS token
        ) i
        LEFT JOIN processes p
            ON (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            AND p.init_task_id = i.task_id;
    END IF;

    IF p_idempotency_key IS NOT NULL AND v_created > 0 THEN
        -- After the insertion, since that waits for a concurrent removal of the process. A plain
        -- statement checks first: usually there is nothing to do, and a loop costs twice as much.
        SELECT array_agg(i.item)
        INTO v_repeated
        FROM (
            SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                unnest(p_namespace) AS namespace, unnest(p_process_id) AS process_id,
                unnest(p_idempotency_key) AS idempotency_key
        ) i
        WHERE (
            SELECT a.task_id
            FROM replies a
            WHERE (a.slot, a.namespace, a.process_id, a.idempotency_key)
                = (i.slot, i.namespace, i.process_id, i.idempotency_key)
            LIMIT 1
        ) IS NOT NULL;

        IF v_repeated IS NOT NULL THEN
            FOR v_known IN
                SELECT i.item, i.slot, i.namespace, i.process_id,
                    a.fingerprint = i.fingerprint AND a.task_type = 'init' AS is_same, a.task_id,
                    a.task_type, a.status, a.response, a.error_code, a.error_reason, a.error_message,
                    a.error_rejected, a.error_metadata
                FROM (
                    SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                        unnest(p_namespace) AS namespace, unnest(p_process_id) AS process_id,
                        unnest(p_idempotency_key) AS idempotency_key,
                        unnest(p_fingerprint) AS fingerprint, unnest(v_task_ids) AS created_task_id
                ) i
                CROSS JOIN LATERAL find_reply(
                    i.slot, i.namespace, i.process_id, i.idempotency_key) a
                WHERE i.item = ANY (v_repeated) AND i.created_task_id IS NOT NULL
            LOOP
                DELETE FROM processes p
                WHERE (p.slot, p.namespace, p.process_id)
                    = (v_known.slot, v_known.namespace, v_known.process_id);
                v_created := v_created - 1;
                v_task_ids[v_known.item] := NULL;
                v_tokens[v_known.item] := NULL;
                v_is_known[v_known.item] := true;
                IF v_known.is_same THEN
                    RETURN NEXT (
                        v_known.item, 'duplicate', v_now, v_known.task_id, NULL, v_known.task_type,
                        v_known.status, v_known.response, v_known.error_code, v_known.error_reason,
                        v_known.error_message, v_known.error_rejected, v_known.error_metadata,
                        NULL)::admitted_start;
                ELSE
                    RETURN NEXT (
                        v_known.item, 'key_reused', v_now, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                        NULL, NULL, NULL)::admitted_start;
                END IF;
            END LOOP;
        END IF;
    END IF;

    IF v_created > 0 THEN
        IF v_size = 1 OR p_namespace[1] = ALL (p_namespace) THEN
            INSERT INTO process_counts (namespace, status_after, process_count)
            VALUES (p_namespace[1], 'init', v_created);
        ELSE
            INSERT INTO process_counts (namespace, status_after, process_count)
            SELECT i.namespace, 'init', count(*)
            FROM (SELECT unnest(p_namespace) AS namespace, unnest(v_task_ids) AS task_id) i
            WHERE i.task_id IS NOT NULL
            GROUP BY i.namespace;
        END IF;

        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, first_started_at, started_at, token, history_after, history_limit,
            history_backward, args, caller_context, trace_context, idempotency_key, fingerprint,
            reply_to, replica_id, sender
        )
        SELECT i.slot, i.namespace, i.process_id, i.task_id, 'init',
            CASE WHEN i.token IS NULL THEN 'waiting' ELSE 'running' END::task_status,
            (i.token IS NOT NULL)::integer, v_now, v_now,
            CASE WHEN i.token IS NOT NULL THEN v_now END,
            CASE WHEN i.token IS NOT NULL THEN v_now END, i.token, i.history_after,
            i.history_limit, i.history_backward, i.args, i.caller_context, i.trace_context,
            i.idempotency_key, i.fingerprint,
            CASE WHEN i.waits AND i.token IS NULL THEN ARRAY[p_replica_id] END,
            CASE WHEN i.token IS NOT NULL THEN p_replica_id END, i.sender
        FROM (
            SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
                unnest(p_process_id) AS process_id, unnest(v_task_ids) AS task_id,
                unnest(v_tokens) AS token, unnest(p_history_after) AS history_after,
                unnest(p_history_limit) AS history_limit,
                unnest(p_history_backward) AS history_backward, unnest(p_args) AS args,
                unnest(p_caller_context) AS caller_context,
                unnest(p_trace_context) AS trace_context,
                unnest(p_idempotency_key) AS idempotency_key,
                unnest(p_fingerprint) AS fingerprint, unnest(p_waits) AS waits,
                unnest(p_sender) AS sender
        ) i
        WHERE i.task_id IS NOT NULL;
    END IF;

    IF true = ANY (p_run) THEN
        INSERT INTO running (
            slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
            leased_at, expires_at
        )
        SELECT i.slot, i.namespace, i.process_id, i.task_id, 'init', 1, i.token, p_replica_id,
            v_now, v_now + make_interval(secs => i.expires_after)
        FROM (
            SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
                unnest(p_process_id) AS process_id, unnest(v_task_ids) AS task_id,
                unnest(v_tokens) AS token, unnest(p_expires_after) AS expires_after
        ) i
        WHERE i.token IS NOT NULL;
        GET DIAGNOSTICS v_run_count = ROW_COUNT;
    END IF;

    IF v_created > coalesce(v_run_count, 0) THEN
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
        )
        SELECT i.slot, i.namespace, i.process_id, i.task_id, 'init', 'waiting', v_now, p_replica_id
        FROM (
            SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
                unnest(p_process_id) AS process_id, unnest(v_task_ids) AS task_id,
                unnest(v_tokens) AS token
        ) i
        WHERE i.task_id IS NOT NULL AND i.token IS NULL;
    END IF;

    FOR n IN 1 .. v_size LOOP
        IF v_task_ids[n] IS NOT NULL THEN
            RETURN NEXT (
                n, 'accepted', v_now, v_task_ids[n], v_tokens[n], 'init', NULL, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL)::admitted_start;
        END IF;
    END LOOP;

    IF v_created = v_size THEN
        RETURN;
    END IF;

    -- Some exist already, or their namespace does not. Lock them, then look with a new snapshot.
    FOR v_item IN
        SELECT i.item
        FROM (
            SELECT i.item, p_slot[i.item] AS slot, p_namespace[i.item] AS namespace,
                p_process_id[i.item] AS process_id
            FROM generate_subscripts(p_slot, 1) AS i (item)
            WHERE v_task_ids[i.item] IS NULL AND v_is_known[i.item] IS NULL
            ORDER BY slot, namespace, process_id
        ) i
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            FOR NO KEY UPDATE
        ) p
    LOOP
        v_is_locked[v_item] := true;
    END LOOP;

    RETURN QUERY
    WITH known AS MATERIALIZED (
        SELECT i.*, k.task_id AS known_task_id,
            CASE
                WHEN i.namespace = '' THEN 'quota_exceeded'
                WHEN v_is_locked[i.item] IS NULL AND n.name IS NULL THEN 'namespace_not_found'
                -- Removed meanwhile, and perhaps started again by another request: not locked by us.
                WHEN v_is_locked[i.item] IS NULL THEN 'gone'
                WHEN k.task_id IS NULL THEN 'process_already_exists'
                WHEN k.fingerprint = i.fingerprint AND k.task_type = 'init' THEN 'duplicate'
                ELSE 'key_reused'
            END AS verdict
        FROM (
            SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                unnest(p_namespace) AS namespace, unnest(p_process_id) AS process_id,
                unnest(p_idempotency_key) AS idempotency_key,
                unnest(p_fingerprint) AS fingerprint, unnest(p_waits) AS waits,
                unnest(v_task_ids) AS created_task_id
        ) i
        LEFT JOIN namespaces n ON n.name = i.namespace
        LEFT JOIN tasks k
            ON (k.slot, k.namespace, k.process_id, k.idempotency_key)
             = (i.slot, i.namespace, i.process_id, i.idempotency_key)
        WHERE i.created_task_id IS NULL AND v_is_known[i.item] IS NULL
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
    SELECT k.item, k.verdict, v_now,
        CASE WHEN k.verdict = 'duplicate' THEN k.known_task_id END, NULL::bigint, t.task_type,
        t.status, t.response, t.error_code, t.error_reason, t.error_message, t.error_rejected,
        t.error_metadata, NULL::jsonb
    FROM known k
    LEFT JOIN tasks t
        ON k.verdict = 'duplicate'
        AND (t.slot, t.namespace, t.process_id, t.task_id)
          = (k.slot, k.namespace, k.process_id, k.known_task_id);
END;
$$;
