-- Admits calls, notifies and repairs by the table in domain/processes/admission.py. What is accepted is leased to
-- this replica if the process is free and a worker is reserved, due at once if only the process is free, and queued
-- behind another task otherwise. An accepted request blocks the waiting timer. Items about one process, of which
-- p_head names the first, are decided in their order: all that an admission changes for the next one is that the
-- process is no longer free and the timer no longer waits. They have different idempotency keys, or none.
-- Locks: processes in key order; then, of those processes alone: tasks, schedule, running.
-- Returns: one row per item, in their order. Process columns come with every process that exists; error_code and
-- error_reason also with process_failed: of the task that broke it, if one did.
CREATE FUNCTION admit_requests(
    p_now              timestamptz,
    p_replica_id       bigint,
    p_slot             smallint[],
    p_namespace        text[],
    p_process_id       text[],
    p_head             integer[],
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
    p_expires_after    double precision[],
    p_sender           json[]
)
RETURNS TABLE (LIKE admitted_request)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now        timestamptz;
    v_head       integer;
    v_has_timer  boolean;
    v_is_locked  boolean[];  -- these three by head, null where nothing is said
    v_is_free    boolean[];
    v_blocks     boolean[];
    v_count      integer := 0;
    v_run_count  integer := 0;
    v_items      integer[];  -- these four by the count of what is accepted
    v_task_ids   bigint[];
    v_tokens     bigint[];
    v_free       boolean[];
    v_timers     integer[];  -- heads whose timers are blocked
    v_duplicates integer[];  -- items that join an earlier task, and those tasks
    v_joined     bigint[];
    v_known      record;
BEGIN
    -- A request that comes alone, to a process where nothing runs or waits: plain statements by key take a fraction of
    -- what it costs to start those for a batch. What turns out to be anything else goes on below, under the lock.
    IF cardinality(p_slot) = 1 AND p_run[1] AND p_task_type[1] <> 'repair'
        AND p_history_after IS NULL
    THEN
        SELECT p.status, p.previous_status, p.aux_state, p.metadata, p.created_at,
            p.status_changed_at, p.last_event_id, p.init_task_id, build_job_part(
                p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options),
            p.state_version
        INTO process_status, previous_status, aux_state, metadata, created_at, status_changed_at,
            last_event_id, init_task_id, part, state_version
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot[1], p_namespace[1], p_process_id[1])
        FOR NO KEY UPDATE;

        IF process_status = 'running' AND (
                SELECT r.task_id
                FROM running r
                WHERE (r.slot, r.namespace, r.process_id)
                    = (p_slot[1], p_namespace[1], p_process_id[1])
            ) IS NULL AND (
                SELECT s.task_id
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id)
                    = (p_slot[1], p_namespace[1], p_process_id[1])
                LIMIT 1
            ) IS NULL AND (p_idempotency_key IS NULL OR (
                SELECT k.task_id
                FROM tasks k
                WHERE (k.slot, k.namespace, k.process_id, k.idempotency_key)
                    = (p_slot[1], p_namespace[1], p_process_id[1], p_idempotency_key[1])
            ) IS NULL)
        THEN
            item := 1;
            verdict := 'accepted';
            admitted_at := coalesce(p_now, clock_timestamp());
            task_id := nextval('task_ids');
            token := nextval('lease_tokens');
            free := true;
            task_type := p_task_type[1];
            INSERT INTO tasks (
                slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
                scheduled_at, first_started_at, started_at, token, args, caller_context, trace_context,
                idempotency_key, fingerprint, is_acknowledged, replica_id, sender
            )
            VALUES (
                p_slot[1], p_namespace[1], p_process_id[1], task_id, task_type, 'running', 1,
                admitted_at, admitted_at, admitted_at, admitted_at, token, p_args[1],
                p_caller_context[1], p_trace_context[1], p_idempotency_key[1], p_fingerprint[1],
                NOT p_waits[1], p_replica_id, p_sender[1]
            );
            INSERT INTO running (
                slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
                leased_at, expires_at
            )
            VALUES (
                p_slot[1], p_namespace[1], p_process_id[1], task_id, task_type, 1, token,
                p_replica_id, admitted_at,
                admitted_at + make_interval(secs => p_expires_after[1])
            );
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    FOR v_head IN
        SELECT i.head
        FROM (
            SELECT i.head, p_slot[i.item] AS slot, p_namespace[i.item] AS namespace,
                p_process_id[i.item] AS process_id
            FROM unnest(p_head) WITH ORDINALITY AS i (head, item)
            WHERE i.item = i.head
            ORDER BY slot, namespace, process_id
        ) i
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            FOR NO KEY UPDATE
        ) p
    LOOP
        v_is_locked[v_head] := true;
    END LOOP;

    -- A clock read after the locks: what is admitted later is not older.
    v_now := coalesce(p_now, clock_timestamp());
    admitted_at := v_now;

    -- Left joins in nested loops keep the order of the items. Only the first item of a process looks
    -- whether it is free. An EXISTS might be planned as a hash of the whole table; a scalar
    -- subselect is a look-up by key, whatever the planner thinks of the table's size.
    FOR item, v_head, verdict, free, v_has_timer, task_id, task_type, task_status, response,
        error_code, error_reason, error_message, error_rejected, error_metadata, process_status,
        previous_status, detail, aux_state, metadata, corrupted_by, created_at,
        status_changed_at, last_event_id, init_task_id, part, state_version
    IN
        SELECT i.item, i.head,
            CASE
                WHEN k.task_id IS NOT NULL
                    AND k.fingerprint = i.fingerprint
                    AND k.task_type = i.task_type::task_type THEN 'duplicate'
                WHEN k.task_id IS NOT NULL THEN 'key_reused'
                WHEN p.status = 'finished' THEN 'process_finished'
                WHEN i.task_type = 'repair' AND p.status <> 'error' THEN 'process_is_running'
                WHEN i.task_type <> 'repair' AND p.status = 'error' THEN 'process_failed'
                WHEN p_history_after[i.item] > p.last_event_id THEN 'event_not_found'
                ELSE 'accepted'
            END,
            CASE WHEN i.item = i.head THEN (
                SELECT r.task_id
                FROM running r
                WHERE (r.slot, r.namespace, r.process_id) = (i.slot, i.namespace, i.process_id)
            ) IS NULL AND (
                SELECT s.task_id
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id) = (i.slot, i.namespace, i.process_id)
                    AND s.task_type NOT IN ('timeout', 'remove')
                ORDER BY s.slot, s.namespace, s.process_id, s.task_id
                LIMIT 1
            ) IS NULL AND p.status <> 'init' END,
            CASE WHEN i.item = i.head THEN (
                SELECT s.task_id
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id) = (i.slot, i.namespace, i.process_id)
                    AND s.task_type IN ('timeout', 'remove')
                    AND s.status = 'waiting'
                LIMIT 1
            ) IS NOT NULL END,
            k.task_id, coalesce(k.task_type, i.task_type::task_type), k.status, k.response,
            k.error_code, k.error_reason, k.error_message, k.error_rejected, k.error_metadata,
            p.status, p.previous_status, p.detail, p.aux_state, p.metadata, p.corrupted_by,
            p.created_at, p.status_changed_at, p.last_event_id, p.init_task_id, build_job_part(
                p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options),
            p.state_version
        FROM (
            SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                unnest(p_namespace) AS namespace, unnest(p_process_id) AS process_id,
                unnest(p_head) AS head, unnest(p_task_type) AS task_type,
                unnest(p_idempotency_key) AS idempotency_key, unnest(p_fingerprint) AS fingerprint
        ) i
        LEFT JOIN processes p USING (slot, namespace, process_id)
        LEFT JOIN tasks k
            ON (k.slot, k.namespace, k.process_id, k.idempotency_key)
             = (i.slot, i.namespace, i.process_id, i.idempotency_key)
    LOOP
        token := NULL;
        IF item = v_head THEN
            v_is_free[v_head] := free;
            IF v_has_timer THEN
                v_blocks[v_head] := true;
            END IF;
        END IF;
        IF v_is_locked[v_head] IS NULL THEN
            -- A process that was started since then is not locked: the request came too early.
            verdict := CASE
                WHEN EXISTS (SELECT FROM namespaces n WHERE n.name = p_namespace[item])
                THEN 'process_not_found' ELSE 'namespace_not_found'
            END;
            IF p_idempotency_key[item] IS NOT NULL THEN
                -- It may have gone with the answer to this very request.
                SELECT
                    CASE
                        WHEN a.fingerprint = p_fingerprint[item]
                            AND a.task_type = p_task_type[item]::task_type THEN 'duplicate'
                        ELSE 'key_reused'
                    END AS verdict,
                    a.task_id, a.task_type, a.status, a.response, a.error_code, a.error_reason,
                    a.error_message, a.error_rejected, a.error_metadata
                INTO v_known
                FROM find_reply(
                    p_slot[item], p_namespace[item], p_process_id[item],
                    p_idempotency_key[item]) a;
                IF FOUND THEN
                    SELECT v_known.verdict, v_known.task_id, v_known.task_type, v_known.status,
                        v_known.response, v_known.error_code, v_known.error_reason,
                        v_known.error_message, v_known.error_rejected, v_known.error_metadata
                    INTO verdict, task_id, task_type, task_status, response, error_code,
                        error_reason, error_message, error_rejected, error_metadata;
                END IF;
            END IF;
        ELSIF verdict = 'accepted' THEN
            ASSERT v_is_free[v_head] IS NOT NULL, 'an item came before the first of its process';
            v_count := v_count + 1;
            free := v_is_free[v_head];
            v_is_free[v_head] := false;
            task_id := nextval('task_ids');
            IF free AND p_run[item] THEN
                token := nextval('lease_tokens');
                v_run_count := v_run_count + 1;
            END IF;
            IF v_blocks[v_head] THEN
                v_blocks[v_head] := false;
                v_timers := array_append(v_timers, v_head);
            END IF;
            v_items[v_count] := item;
            v_task_ids[v_count] := task_id;
            v_tokens[v_count] := token;
            v_free[v_count] := free;
        ELSIF verdict = 'process_failed' THEN
            -- The task that broke it, and the reason that the caller gets.
            SELECT t.error_code, t.error_reason
            INTO error_code, error_reason
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (p_slot[item], p_namespace[item], p_process_id[item], corrupted_by);
        ELSIF verdict = 'duplicate' THEN
            v_duplicates := array_append(v_duplicates, item);
            v_joined := array_append(v_joined, task_id);
        END IF;
        RETURN NEXT;
    END LOOP;

    IF v_count > 0 THEN
        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, first_started_at, started_at, token, history_after, history_limit,
            history_backward, args, caller_context, trace_context, idempotency_key, fingerprint,
            is_acknowledged, reply_to, replica_id, sender
        )
        SELECT p_slot[a.item], p_namespace[a.item], p_process_id[a.item], a.task_id,
            p_task_type[a.item]::task_type,
            CASE WHEN a.token IS NULL THEN 'waiting' ELSE 'running' END::task_status,
            (a.token IS NOT NULL)::integer, v_now, CASE WHEN a.free THEN v_now END,
            CASE WHEN a.token IS NOT NULL THEN v_now END,
            CASE WHEN a.token IS NOT NULL THEN v_now END, a.token, p_history_after[a.item],
            p_history_limit[a.item], p_history_backward[a.item], p_args[a.item],
            p_caller_context[a.item], p_trace_context[a.item], p_idempotency_key[a.item],
            p_fingerprint[a.item], NOT p_waits[a.item],
            CASE WHEN p_waits[a.item] AND a.token IS NULL THEN ARRAY[p_replica_id] END,
            CASE WHEN a.token IS NOT NULL THEN p_replica_id END, p_sender[a.item]
        FROM (
            SELECT unnest(v_items) AS item, unnest(v_task_ids) AS task_id,
                unnest(v_tokens) AS token, unnest(v_free) AS free
        ) a;
    END IF;

    IF v_run_count > 0 THEN
        INSERT INTO running (
            slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
            leased_at, expires_at
        )
        SELECT p_slot[a.item], p_namespace[a.item], p_process_id[a.item], a.task_id,
            p_task_type[a.item]::task_type, 1, a.token, p_replica_id, v_now,
            v_now + make_interval(secs => p_expires_after[a.item])
        FROM (
            SELECT unnest(v_items) AS item, unnest(v_task_ids) AS task_id, unnest(v_tokens) AS token
        ) a
        WHERE a.token IS NOT NULL;
    END IF;

    IF v_run_count < v_count THEN
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
        )
        SELECT p_slot[a.item], p_namespace[a.item], p_process_id[a.item], a.task_id,
            p_task_type[a.item]::task_type, 'waiting', CASE WHEN a.free THEN v_now END, p_replica_id
        FROM (
            SELECT unnest(v_items) AS item, unnest(v_task_ids) AS task_id,
                unnest(v_tokens) AS token, unnest(v_free) AS free
        ) a
        WHERE a.token IS NULL;
    END IF;

    IF v_timers IS NOT NULL THEN
        UPDATE schedule s
        SET status = 'blocked'
        FROM (SELECT unnest(v_timers) AS head) t
        WHERE (s.slot, s.namespace, s.process_id)
            = (p_slot[t.head], p_namespace[t.head], p_process_id[t.head])
            AND s.task_type IN ('timeout', 'remove')
            AND s.status = 'waiting';
    END IF;

    IF v_joined IS NOT NULL THEN
        UPDATE tasks t
        SET reply_to = CASE
                WHEN p_waits[d.item] AND (t.reply_to IS NULL OR p_replica_id <> ALL (t.reply_to))
                THEN array_append(t.reply_to, p_replica_id)
                ELSE t.reply_to
            END,
            -- A request that is accepted for the key of one whose caller waits is acknowledged with it.
            is_acknowledged = t.is_acknowledged OR NOT p_waits[d.item]
        FROM (SELECT unnest(v_duplicates) AS item, unnest(v_joined) AS task_id) d
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p_slot[d.item], p_namespace[d.item], p_process_id[d.item], d.task_id)
            AND t.status NOT IN ('finished', 'error', 'cancelled')
            AND CASE WHEN p_waits[d.item]
                THEN t.reply_to IS NULL OR p_replica_id <> ALL (t.reply_to)
                ELSE NOT t.is_acknowledged
            END;
    END IF;
END;
$$;
