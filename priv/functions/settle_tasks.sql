-- Settles leased tasks: events, state, timer, response and the next task of each process in one
-- transaction. An item whose lease is lost changes nothing and says so.
--
-- outcome of an item (domain/settlement.py):
--   finish  the step succeeded; `timer` says keep, set or unset; `completes` ends the process
--   fail    the task ends in error and its process stays as it is
--   retry   the task waits for another attempt, `retry_after` from now
--   break   the task ends in error and breaks its process
--   remove  the process goes, with all its rows; the task's own answer is kept in replies
--
-- Locks: processes in key order; then, of those processes alone: running, schedule, tasks, events.
-- Returns: one row per item, in any order. next_*: the task that continues in the same worker.
-- timer_*: what the process now waits for with nothing running, a timer or its own retry.
-- cancelled: [[task_id, task_type, [replica_id, ...]], ...] of tasks that will never run.
CREATE FUNCTION settle_tasks(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_grace              double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_task_id            bigint[],
    p_token              bigint[],
    p_outcome            text[],
    p_attempt_count      integer[],
    p_response           bytea[],
    p_error_code         integer[],
    p_error_reason       text[],
    p_error_message      text[],
    p_error_rejected     boolean[],
    p_error_metadata     json[],
    p_aux_state          bytea[],
    p_metadata           jsonb[],
    p_completes          boolean[],
    p_result             bytea[],
    p_retry_after        double precision[],
    p_timer              text[],
    p_timer_type         text[],
    p_timer_at           timestamptz[],
    p_timer_after        double precision[],
    p_timer_args         bytea[],
    p_timer_trace        json[],
    p_timer_timeout      double precision[],
    p_history_after      bigint[],
    p_history_limit      integer[],
    p_history_backward   boolean[],
    p_continues          boolean[],
    p_expires_after      double precision[],
    p_event_count        integer[],
    e_item               bigint[],
    e_ordinal            integer[],
    e_payload            bytea[],
    e_format_version     integer[],
    e_metadata           json[]
)
RETURNS TABLE (
    item integer, verdict text, settled_at timestamptz, process_status process_status,
    status_changed_at timestamptz, last_event_id bigint, reply_to bigint[], cancelled jsonb,
    timer_task_id bigint, timer_due_at timestamptz,
    next_task_id bigint, next_task_type task_type, next_attempt integer, next_token bigint,
    next_args bytea, next_caller_context json, next_trace_context json,
    next_history_after bigint, next_history_limit integer, next_history_backward boolean,
    next_step_timeout double precision, next_scheduled_at timestamptz,
    next_first_started_at timestamptz
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
    v_now timestamptz;
BEGIN
    PERFORM
    FROM processes p
    JOIN unnest(p_slot, p_namespace, p_process_id) AS i (slot, namespace, process_id)
        USING (slot, namespace, process_id)
    ORDER BY p.slot, p.namespace, p.process_id
    FOR NO KEY UPDATE OF p;

    v_now := coalesce(p_now, clock_timestamp());

    -- The rare ones first, by a function of their own: nothing of their processes is left after.
    IF 'remove' = ANY (p_outcome) THEN
        RETURN QUERY
        SELECT i.item::integer, CASE WHEN g.item IS NULL THEN 'lease_lost' ELSE 'settled' END, v_now,
            NULL::process_status, NULL::timestamptz, NULL::bigint, g.reply_to, g.cancelled,
            NULL::bigint, NULL::timestamptz, NULL::bigint, NULL::task_type, NULL::integer,
            NULL::bigint, NULL::bytea, NULL::json, NULL::json, NULL::bigint, NULL::integer,
            NULL::boolean, NULL::double precision, NULL::timestamptz, NULL::timestamptz
        FROM unnest(p_outcome) WITH ORDINALITY AS i (outcome, item)
        LEFT JOIN settle_removals(
            v_now, p_slot, p_namespace, p_process_id, p_task_id, p_token, p_outcome, p_response,
            p_error_code, p_error_reason, p_error_message, p_error_rejected, p_error_metadata
        ) g USING (item)
        WHERE i.outcome = 'remove';
    END IF;

    RETURN QUERY
    WITH item AS (
        SELECT i.*
        FROM unnest(
            p_slot, p_namespace, p_process_id, p_task_id, p_token, p_outcome, p_attempt_count,
            p_response, p_error_code, p_error_reason, p_error_message, p_error_rejected,
            p_error_metadata, p_aux_state, p_metadata, p_completes, p_result, p_retry_after,
            p_timer, p_timer_type, p_timer_at, p_timer_after, p_timer_args, p_timer_trace,
            p_timer_timeout, p_history_after, p_history_limit, p_history_backward, p_continues,
            p_expires_after, p_event_count
        ) WITH ORDINALITY AS i (
            slot, namespace, process_id, task_id, token, outcome, attempt_count,
            response, error_code, error_reason, error_message, error_rejected,
            error_metadata, aux_state, metadata, completes, result, retry_after,
            timer, timer_type, timer_at, timer_after, timer_args, timer_trace,
            timer_timeout, history_after, history_limit, history_backward, continues,
            expires_after, event_count, item
        )
    ),
    held AS MATERIALIZED (
        SELECT i.*, r.task_type, r.task_type IN ('timeout', 'remove') AS is_timer,
            p.status AS old_status, p.last_event_id, p.corrupted_by, p.status_changed_at,
            CASE
                WHEN i.outcome = 'finish' AND i.completes THEN 'finished'
                WHEN i.outcome = 'finish' THEN 'running'
                WHEN i.outcome = 'break' THEN 'error'
                ELSE p.status
            END::process_status AS new_status,
            -- Whoever waits behind this task, when it ends like this, waits in vain. A process in
            -- error has only repairs in line: one that comes after a success has nothing to do, one
            -- that comes after a failure is the next to try.
            CASE
                WHEN i.outcome = 'break' AND p.status <> 'error' THEN 'PROCESS_FAILED'
                WHEN i.outcome = 'finish' AND i.completes THEN 'PROCESS_FINISHED'
                WHEN i.outcome = 'finish' AND p.status = 'error' THEN 'PROCESS_IS_RUNNING'
            END AS cancels
        FROM item i
        JOIN processes p USING (slot, namespace, process_id)
        JOIN running r USING (slot, namespace, process_id)
        WHERE r.token = i.token AND i.outcome <> 'remove'
    ),
    next_call AS MATERIALIZED (
        SELECT h.item, c.task_id, c.task_type, c.attempt
        FROM held h
        CROSS JOIN LATERAL (
            SELECT s.task_id, s.task_type, s.attempt
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (h.slot, h.namespace, h.process_id)
                AND s.task_type NOT IN ('timeout', 'remove')
            ORDER BY s.slot, s.namespace, s.process_id, s.task_id
            LIMIT 1
        ) c
        WHERE h.cancels IS NULL AND (h.outcome <> 'retry' OR h.is_timer)
    ),
    -- The timer that stood aside for this step, if it is to go on.
    kept_timer AS MATERIALIZED (
        SELECT h.item, s.task_id, s.task_type, s.attempt, s.due_at
        FROM held h
        JOIN schedule s
            ON (s.slot, s.namespace, s.process_id) = (h.slot, h.namespace, h.process_id)
            AND s.task_type IN ('timeout', 'remove')
        WHERE h.cancels IS NULL
            AND NOT (h.outcome = 'finish' AND h.timer <> 'keep')
            AND NOT (h.outcome = 'retry' AND NOT h.is_timer)
    ),
    -- A timer that the step sets; or the timer that broke the process, once a repair has succeeded
    -- without saying what comes next.
    new_timer AS MATERIALIZED (
        SELECT h.item, h.slot, h.namespace, h.process_id, nextval('task_ids') AS task_id,
            t.task_type, t.due_at, t.args, t.trace_context,
            t.step_timeout, t.history_after, t.history_limit, t.history_backward
        FROM held h
        CROSS JOIN LATERAL (
            SELECT h.timer_type::task_type AS task_type,
                coalesce(h.timer_at, v_now + make_interval(secs => h.timer_after)) AS due_at,
                coalesce(h.timer_args, '') AS args, h.timer_trace AS trace_context,
                make_interval(secs => h.timer_timeout) AS step_timeout,
                h.history_after, h.history_limit, h.history_backward
            WHERE h.outcome = 'finish' AND h.timer = 'set' AND NOT h.completes
            UNION ALL
            SELECT b.task_type, v_now, b.args, b.trace_context, b.step_timeout,
                b.history_after, b.history_limit, b.history_backward
            FROM tasks b
            WHERE h.outcome = 'finish' AND h.timer = 'keep' AND NOT h.completes
                AND h.task_type = 'repair'
                AND (b.slot, b.namespace, b.process_id, b.task_id)
                  = (h.slot, h.namespace, h.process_id, h.corrupted_by)
                AND b.task_type IN ('timeout', 'remove')
        ) t
    ),
    -- What the worker goes on with: the oldest call in line, or else a timer that is due.
    next AS MATERIALIZED (
        SELECT h.item, h.slot, h.namespace, h.process_id, h.expires_after,
            coalesce(c.task_id, k.task_id, n.task_id) AS task_id,
            coalesce(c.task_type, k.task_type, n.task_type) AS task_type,
            CASE
                WHEN c.task_id IS NOT NULL THEN c.attempt
                ELSE coalesce(k.attempt, 0)
            END + 1 AS attempt,
            c.task_id IS NULL AND n.task_id IS NOT NULL AS is_new,
            nextval('lease_tokens') AS token
        FROM held h
        LEFT JOIN next_call c USING (item)
        LEFT JOIN kept_timer k ON k.item = h.item AND k.due_at <= v_now
        LEFT JOIN new_timer n ON n.item = h.item AND n.due_at <= v_now
        WHERE h.continues AND coalesce(c.task_id, k.task_id, n.task_id) IS NOT NULL
    ),
    recorded AS (
        INSERT INTO events (
            slot, namespace, process_id, event_id, task_id, occurred_at, format_version, payload,
            metadata
        )
        SELECT h.slot, h.namespace, h.process_id, h.last_event_id + e.ordinal, h.task_id, v_now,
            e.format_version, e.payload, e.metadata
        FROM unnest(e_item, e_ordinal, e_payload, e_format_version, e_metadata)
            AS e (item, ordinal, payload, format_version, metadata)
        JOIN held h USING (item)
    ),
    ended AS (
        UPDATE tasks t
        SET status = CASE h.outcome
                WHEN 'finish' THEN 'finished' WHEN 'retry' THEN 'waiting' ELSE 'error'
            END::task_status,
            attempt_count = h.attempt_count,
            finished_at = CASE WHEN h.outcome <> 'retry' THEN v_now END,
            response = h.response,
            error_code = h.error_code,
            error_reason = h.error_reason,
            error_message = h.error_message,
            error_rejected = h.error_rejected,
            error_metadata = h.error_metadata,
            first_event_id = CASE WHEN h.event_count > 0 THEN h.last_event_id + 1 END,
            event_count = h.event_count
        FROM held h
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (h.slot, h.namespace, h.process_id, h.task_id)
        RETURNING h.item, CASE WHEN h.outcome <> 'retry' THEN t.reply_to END AS reply_to
    ),
    dropped AS (
        DELETE FROM schedule s
        USING held h
        WHERE (s.slot, s.namespace, s.process_id) = (h.slot, h.namespace, h.process_id)
            AND (h.cancels IS NOT NULL
                OR (h.outcome = 'finish' AND h.timer <> 'keep'
                    AND s.task_type IN ('timeout', 'remove')))
        RETURNING h.item, s.slot, s.namespace, s.process_id, s.task_id, h.cancels,
            h.task_id AS by_task_id, h.error_message AS detail
    ),
    cancelled AS (
        UPDATE tasks t
        SET status = 'cancelled', finished_at = v_now,
            error_code = CASE WHEN d.cancels IS NOT NULL THEN 9 END,
            error_reason = d.cancels,
            error_message = CASE WHEN d.cancels IS NOT NULL THEN coalesce(d.detail, '') END,
            error_rejected = CASE WHEN d.cancels IS NOT NULL THEN false END,
            error_metadata = CASE WHEN d.cancels IS NOT NULL
                THEN json_build_object('task_id', d.by_task_id::text) END
        FROM dropped d
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (d.slot, d.namespace, d.process_id, d.task_id)
        RETURNING d.item, t.task_id, t.task_type, t.reply_to
    ),
    told AS MATERIALIZED (
        SELECT c.item, jsonb_agg(jsonb_build_array(
            c.task_id, c.task_type, coalesce(to_jsonb(c.reply_to), '[]'))) AS tasks
        FROM cancelled c
        GROUP BY c.item
    ),
    -- The line moves: what runs next leaves the schedule; what cannot continue here becomes due; a
    -- kept timer wakes unless a call is still before it.
    taken AS (
        DELETE FROM schedule s
        USING next n
        WHERE (s.slot, s.namespace, s.process_id, s.task_id)
            = (n.slot, n.namespace, n.process_id, n.task_id)
            AND NOT n.is_new
    ),
    brought_on AS (
        UPDATE schedule s
        SET due_at = v_now
        FROM held h
        JOIN next_call c USING (item)
        WHERE NOT h.continues
            AND (s.slot, s.namespace, s.process_id, s.task_id)
              = (h.slot, h.namespace, h.process_id, c.task_id)
    ),
    woken AS (
        UPDATE schedule s
        SET status = 'waiting'
        FROM held h
        JOIN kept_timer k USING (item)
        LEFT JOIN next_call c USING (item)
        LEFT JOIN next n USING (item)
        WHERE c.task_id IS NULL AND n.task_id IS DISTINCT FROM k.task_id
            AND (s.slot, s.namespace, s.process_id, s.task_id)
              = (h.slot, h.namespace, h.process_id, k.task_id)
    ),
    timed AS (
        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
            scheduled_at, first_started_at, started_at, token, step_timeout, history_after,
            history_limit, history_backward, args, trace_context
        )
        SELECT t.slot, t.namespace, t.process_id, t.task_id, t.task_type,
            CASE WHEN n.task_id = t.task_id THEN 'running' ELSE 'waiting' END::task_status,
            (n.task_id IS NOT DISTINCT FROM t.task_id)::integer, v_now, t.due_at,
            CASE WHEN n.task_id = t.task_id THEN v_now END,
            CASE WHEN n.task_id = t.task_id THEN v_now END,
            CASE WHEN n.task_id = t.task_id THEN n.token END,
            t.step_timeout, t.history_after, t.history_limit, t.history_backward, t.args,
            t.trace_context
        FROM new_timer t
        LEFT JOIN next n USING (item)
    ),
    lined_up AS (
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id
        )
        SELECT t.slot, t.namespace, t.process_id, t.task_id, t.task_type,
            CASE WHEN c.task_id IS NULL THEN 'waiting' ELSE 'blocked' END::task_status, t.due_at, 0,
            p_replica_id
        FROM new_timer t
        LEFT JOIN next n USING (item)
        LEFT JOIN next_call c ON c.item = t.item
        WHERE n.task_id IS DISTINCT FROM t.task_id
            -- Reads all of `dropped`, so that the timer it replaces is gone from schedule_timer.
            AND (SELECT count(*) FROM dropped) >= 0
        UNION ALL
        SELECT h.slot, h.namespace, h.process_id, h.task_id, h.task_type,
            CASE WHEN c.task_id IS NULL THEN 'waiting' ELSE 'blocked' END::task_status,
            v_now + make_interval(secs => h.retry_after), h.attempt_count, p_replica_id
        FROM held h
        LEFT JOIN next_call c USING (item)
        WHERE h.outcome = 'retry'
    ),
    begun AS (
        UPDATE tasks t
        SET status = 'running',
            attempt_count = n.attempt,
            scheduled_at = coalesce(t.scheduled_at, v_now),
            first_started_at = coalesce(t.first_started_at, v_now),
            started_at = v_now,
            token = n.token
        FROM next n
        WHERE NOT n.is_new
            AND (t.slot, t.namespace, t.process_id, t.task_id)
              = (n.slot, n.namespace, n.process_id, n.task_id)
        RETURNING n.item, t.args, t.caller_context, t.trace_context, t.history_after,
            t.history_limit, t.history_backward, t.step_timeout, t.scheduled_at, t.first_started_at
    ),
    continued AS (
        UPDATE running r
        SET task_id = n.task_id,
            task_type = n.task_type,
            attempt = n.attempt,
            token = n.token,
            previous_token = r.token,
            replica_id = p_replica_id,
            leased_at = v_now,
            expires_at = v_now + coalesce(
                CASE WHEN n.is_new THEN t.step_timeout ELSE b.step_timeout END
                    + make_interval(secs => p_grace),
                make_interval(secs => n.expires_after))
        FROM next n
        LEFT JOIN begun b USING (item)
        LEFT JOIN new_timer t ON t.item = n.item
        WHERE (r.slot, r.namespace, r.process_id) = (n.slot, n.namespace, n.process_id)
    ),
    freed AS (
        DELETE FROM running r
        USING held h
        LEFT JOIN next n USING (item)
        WHERE (r.slot, r.namespace, r.process_id) = (h.slot, h.namespace, h.process_id)
            AND n.item IS NULL
    ),
    moved AS (
        UPDATE processes p
        SET status = h.new_status,
            previous_status = CASE
                WHEN h.new_status = h.old_status THEN p.previous_status ELSE h.old_status END,
            status_changed_at = CASE
                WHEN h.new_status = h.old_status THEN p.status_changed_at ELSE v_now END,
            detail = CASE
                WHEN h.outcome = 'break' THEN coalesce(h.error_message, '')
                WHEN h.new_status = 'error' THEN p.detail
            END,
            corrupted_by = CASE
                WHEN h.outcome = 'break' THEN h.task_id
                WHEN h.new_status = 'error' THEN p.corrupted_by
            END,
            aux_state = coalesce(h.aux_state, p.aux_state),
            metadata = coalesce(h.metadata, p.metadata),
            last_event_id = p.last_event_id + h.event_count,
            result = CASE WHEN h.new_status = 'finished' THEN h.result ELSE p.result END
        FROM held h
        WHERE h.outcome IN ('finish', 'break')
            AND (p.slot, p.namespace, p.process_id) = (h.slot, h.namespace, h.process_id)
    )
    SELECT i.item::integer,
        CASE WHEN h.item IS NULL THEN 'lease_lost' ELSE 'settled' END,
        v_now, h.new_status,
        CASE WHEN h.new_status = h.old_status THEN h.status_changed_at ELSE v_now END,
        h.last_event_id + h.event_count,
        e.reply_to, o.tasks,
        CASE WHEN w.idle THEN
            coalesce(t.task_id, k.task_id, CASE WHEN h.outcome = 'retry' THEN h.task_id END) END,
        CASE WHEN w.idle THEN
            coalesce(t.due_at, k.due_at, CASE WHEN h.outcome = 'retry'
                THEN v_now + make_interval(secs => h.retry_after) END) END,
        n.task_id, n.task_type, n.attempt, n.token,
        CASE WHEN n.is_new THEN t.args ELSE b.args END,
        b.caller_context,
        CASE WHEN n.is_new THEN t.trace_context ELSE b.trace_context END,
        CASE WHEN n.is_new THEN t.history_after ELSE b.history_after END,
        CASE WHEN n.is_new THEN t.history_limit ELSE b.history_limit END,
        CASE WHEN n.is_new THEN t.history_backward ELSE b.history_backward END,
        extract(epoch FROM CASE WHEN n.is_new THEN t.step_timeout ELSE b.step_timeout END
            )::double precision,
        CASE WHEN n.is_new THEN t.due_at ELSE b.scheduled_at END,
        CASE WHEN n.is_new THEN v_now ELSE b.first_started_at END
    FROM item i
    LEFT JOIN held h USING (item)
    LEFT JOIN ended e USING (item)
    LEFT JOIN told o USING (item)
    LEFT JOIN kept_timer k USING (item)
    LEFT JOIN new_timer t USING (item)
    LEFT JOIN next n USING (item)
    LEFT JOIN begun b USING (item)
    LEFT JOIN next_call c USING (item)
    CROSS JOIN LATERAL (SELECT n.item IS NULL AND c.item IS NULL AS idle) w
    WHERE i.outcome <> 'remove';
END;
$$;
