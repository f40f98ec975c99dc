-- Settles steps of turns: calls and notifies of one process that have run one after the other, each on the state that
-- the one before left. They have ended well, with nothing but events, state, metadata and a response, or were rejected.
-- The lease moves to the task behind them, p_next_id, which has begun too, and is settled by itself.
--
-- p_* have a place per turn: its process, the token of the lease of its first step, what the process has in the end,
-- and the lease of the next task. s_* have a place per step, in the order of the turns, up to `steps_until` those of a
-- turn and the turns before it; events as in settle_tasks.
--
-- A turn changes nothing if its lease was lost, or if its tasks are no longer the next in line because one of them was
-- cancelled or the process was halted.
-- Locks: processes in key order; then, of those processes alone: running, schedule, tasks, events.
-- Returns: one row per step settled, in any order, with the number of its turn and the replicas where callers wait.
CREATE FUNCTION settle_turns(
    p_now            timestamptz,
    p_replica_id     bigint,
    p_slot           smallint[],
    p_namespace      text[],
    p_process_id     text[],
    p_token          bigint[],
    p_next_id        bigint[],
    p_next_token     bigint[],
    p_expires_after  double precision[],
    p_aux_state      bytea[],
    p_state_version  integer[],
    p_metadata       jsonb[],
    p_steps_until    integer[],
    s_task_id        bigint[],
    s_token          bigint[],
    s_response       bytea[],
    s_error_code     integer[],
    s_error_reason   text[],
    s_error_message  text[],
    s_error_metadata json[],
    s_events_until   integer[],
    e_payload        bytea[],
    e_format_version integer[],
    e_metadata       json[]
)
RETURNS TABLE (item integer, settled_at timestamptz, task_id bigint, reply_to bigint[])
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now     timestamptz;
    v_turns   integer[];  -- those whose leases hold and whose tasks are the next ones
    v_leases  tid[];      -- the row of each in running
    v_places  tid[];      -- and in processes
    v_of      integer[];  -- the turn of each of their steps
    v_steps   integer[];  -- these steps
    v_forgets boolean;
BEGIN
    PERFORM
    FROM (
        SELECT i.slot, i.namespace, i.process_id
        FROM unnest(p_slot, p_namespace, p_process_id) AS i (slot, namespace, process_id)
        ORDER BY i.slot, i.namespace, i.process_id
    ) i
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
        FOR NO KEY UPDATE
    ) p;

    v_now := coalesce(p_now, clock_timestamp());

    SELECT array_agg(i.item), array_agg(r.ctid), array_agg(p.ctid), bool_or(r.has_memos)
    INTO v_turns, v_leases, v_places, v_forgets
    FROM (
        SELECT u.item::integer, u.token, coalesce(p_steps_until[u.item - 1], 0) + 1 AS first,
            p_steps_until[u.item] AS last
        FROM unnest(p_token) WITH ORDINALITY AS u (token, item)
    ) i
    CROSS JOIN LATERAL (
        SELECT r.ctid, r.has_memos
        FROM running r
        WHERE (r.slot, r.namespace, r.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
            AND (r.task_id, r.token) = (s_task_id[i.first], i.token)
        OFFSET 0
    ) r
    CROSS JOIN LATERAL (
        SELECT p.ctid
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
            AND p.status = 'running'
            AND NOT (p.is_gated OR p.has_reply_requests)
        OFFSET 0
    ) p
    WHERE s_task_id[i.first + 1:i.last] || p_next_id[i.item] = ARRAY(
        SELECT w.task_id
        FROM schedule w
        WHERE (w.slot, w.namespace, w.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
            AND w.task_type NOT IN ('timeout', 'remove')
        ORDER BY w.slot, w.namespace, w.process_id, w.task_id
        LIMIT i.last - i.first + 1
    );
    IF v_turns IS NULL THEN
        RETURN;
    END IF;

    SELECT array_agg(u.item), array_agg(k.step)
    INTO v_of, v_steps
    FROM unnest(v_turns) AS u (item)
    CROSS JOIN LATERAL generate_series(
        coalesce(p_steps_until[u.item - 1], 0) + 1, p_steps_until[u.item]) AS k (step);

    -- Rows are looked up by key in what is LATERAL and has OFFSET 0, and written by ctid, as in settle_tasks.
    DELETE FROM schedule w
    USING (
        SELECT w.ctid AS waiting_row, p_slot[u.item] AS slot
        FROM (
            SELECT u.item, s_task_id[u.step] AS task_id
            FROM unnest(v_of, v_steps) AS u (item, step)
            UNION ALL
            SELECT u.item, p_next_id[u.item]
            FROM unnest(v_turns) AS u (item)
        ) u
        CROSS JOIN LATERAL (
            SELECT w.ctid
            FROM schedule w
            WHERE (w.slot, w.namespace, w.process_id, w.task_id)
                = (p_slot[u.item], p_namespace[u.item], p_process_id[u.item], u.task_id)
            OFFSET 0
        ) w
        OFFSET 0
    ) u
    WHERE w.ctid = u.waiting_row AND w.slot BETWEEN u.slot AND u.slot;

    WITH begun AS (
        UPDATE tasks t
        SET status = 'running',
            attempt_count = 1,
            scheduled_at = coalesce(t.scheduled_at, v_now),
            first_started_at = v_now,
            started_at = v_now,
            token = p_next_token[u.item],
            replica_id = p_replica_id
        FROM (
            SELECT k.item, k.running_row, p_slot[k.item] AS slot, t.ctid AS task_row
            FROM unnest(v_turns, v_leases) AS k (item, running_row)
            CROSS JOIN LATERAL (
                SELECT t.ctid
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (p_slot[k.item], p_namespace[k.item], p_process_id[k.item], p_next_id[k.item])
                OFFSET 0
            ) t
            OFFSET 0
        ) u
        WHERE t.ctid = u.task_row AND t.slot BETWEEN u.slot AND u.slot
        RETURNING t.slot, t.task_id, t.task_type, t.token, u.running_row,
            p_expires_after[u.item] AS expires_after
    )
    UPDATE running r
    SET task_id = b.task_id,
        task_type = b.task_type,
        attempt = 1,
        token = b.token,
        previous_token = r.token,
        replica_id = p_replica_id,
        leased_at = v_now,
        expires_at = v_now + make_interval(secs => b.expires_after),
        has_memos = NULL
    FROM begun b
    WHERE r.ctid = b.running_row AND r.slot BETWEEN b.slot AND b.slot;

    IF e_payload IS NOT NULL THEN
        INSERT INTO events (
            slot, namespace, process_id, event_id, task_id, occurred_at, format_version, payload,
            metadata
        )
        SELECT p.slot, p.namespace, p.process_id,
            p.last_event_id + e.place - coalesce(s_events_until[p_steps_until[u.item - 1]], 0),
            s_task_id[u.step], v_now, coalesce(e_format_version[e.place], 0), e_payload[e.place],
            e_metadata[e.place]
        FROM unnest(v_of, v_steps) AS u (item, step)
        CROSS JOIN LATERAL (
            SELECT p.slot, p.namespace, p.process_id, p.last_event_id
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id)
                = (p_slot[u.item], p_namespace[u.item], p_process_id[u.item])
            OFFSET 0
        ) p
        CROSS JOIN LATERAL generate_series(
            coalesce(s_events_until[u.step - 1], 0) + 1, s_events_until[u.step]) AS e (place);
    END IF;

    RETURN QUERY
    UPDATE tasks t
    SET status = CASE WHEN s_error_code[u.step] IS NULL THEN 'finished' ELSE 'error' END::task_status,
        attempt_count = CASE WHEN u.is_first THEN t.attempt_count ELSE 1 END,
        scheduled_at = coalesce(t.scheduled_at, v_now),
        first_started_at = coalesce(t.first_started_at, v_now),
        started_at = CASE WHEN u.is_first THEN t.started_at ELSE v_now END,
        finished_at = v_now,
        tried_for = NULL,
        token = s_token[u.step],
        replica_id = p_replica_id,
        response = s_response[u.step],
        error_code = s_error_code[u.step],
        error_reason = s_error_reason[u.step],
        error_message = s_error_message[u.step],
        error_rejected = CASE WHEN s_error_code[u.step] IS NOT NULL THEN true END,
        error_metadata = s_error_metadata[u.step],
        first_event_id = CASE WHEN u.event_count > 0
            THEN u.last_event_id + u.events_before + 1 END,
        event_count = u.event_count
    FROM (
        SELECT k.item, k.step, p_slot[k.item] AS slot, t.ctid AS task_row, p.last_event_id,
            k.step = coalesce(p_steps_until[k.item - 1], 0) + 1 AS is_first,
            coalesce(s_events_until[k.step - 1], 0)
                - coalesce(s_events_until[p_steps_until[k.item - 1]], 0) AS events_before,
            coalesce(s_events_until[k.step], 0) - coalesce(s_events_until[k.step - 1], 0)
                AS event_count
        FROM unnest(v_of, v_steps) AS k (item, step)
        CROSS JOIN LATERAL (
            SELECT p.last_event_id
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id)
                = (p_slot[k.item], p_namespace[k.item], p_process_id[k.item])
            OFFSET 0
        ) p
        CROSS JOIN LATERAL (
            SELECT t.ctid
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (p_slot[k.item], p_namespace[k.item], p_process_id[k.item], s_task_id[k.step])
            OFFSET 0
        ) t
        OFFSET 0
    ) u
    WHERE t.ctid = u.task_row AND t.slot BETWEEN u.slot AND u.slot
    RETURNING u.item, v_now, t.task_id, t.reply_to;

    UPDATE processes p
    SET aux_state = coalesce(p_aux_state[u.item], p.aux_state),
        -- A state without a version replaces one with a version, too.
        state_version = CASE
            WHEN p_aux_state[u.item] IS NULL THEN p.state_version
            ELSE coalesce(p_state_version[u.item], 0)
        END,
        metadata = coalesce(p_metadata[u.item], p.metadata),
        last_event_id = p.last_event_id + coalesce(s_events_until[p_steps_until[u.item]], 0)
            - coalesce(s_events_until[p_steps_until[u.item - 1]], 0)
    FROM (
        SELECT k.item, k.process_row, p_slot[k.item] AS slot
        FROM unnest(v_turns, v_places) AS k (item, process_row)
        OFFSET 0
    ) u
    WHERE p.ctid = u.process_row AND p.slot BETWEEN u.slot AND u.slot;

    IF v_forgets THEN
        PERFORM forget_memos(ARRAY(
            SELECT (p_slot[u.item], p_namespace[u.item], p_process_id[u.item])::process_key
            FROM unnest(v_turns) AS u (item)));
    END IF;
END;
$$;
