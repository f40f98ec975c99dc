-- Settles leased tasks: events, state, timer, response and the next task of each process in one transaction. An
-- item whose lease is lost changes nothing and has no row in the answer.
--
-- outcome of an item (domain/processes/settlement.py):
--   finish    the step succeeded; `timer` says keep (null), 'unset', or the type of one to set
--   complete  the step succeeded and ends the process
--   fail      the task ends in error and its process stays as it is
--   retry     the task waits for another attempt, `retry_after` from now
--   break     the task ends in error and breaks its process; what waits there is held, or cancelled if p_cancels
--   remove    the process goes, with all its rows; the task's own answer is kept in replies
--
-- Arrays have a place per item, and are null where no item has a value: an array costs more than what is in it.
-- Those of events hold the events of all items, up to `events_until` those of an item and the items before it; those
-- of messages, m_*, name the item. The
-- worker continues with the next task of the process, leased for `expires_after`; null: it does not.
-- `failure` is of a step that breaks its process: {"message", "task_type", "release"}, by which its failure is grouped.
-- `timers` are the changes of named timers (settle_timers). A process with several timers has all of them in the
-- schedule, blocked but for the earliest, and only that one is looked at here.
--
-- The first statement locks, the second decides (a `settling` per item), the others write what is needed, by ctid,
-- which only the holder of the lock can change: a join by key would read a table whole that statistics call empty.
-- Locks: processes in key order; then, of those processes alone: running, schedule, tasks, events.
-- Returns: one row per item settled, in any order. next_*: the task that continues in the same worker. timer_*:
-- what the process now waits for with nothing running, a timer or its own retry. cancelled: [[task_id, task_type,
-- [replica_id, ...]], ...] of tasks that will never run. If gates are involved, or processes end that are awaited, more
-- rows, without an item, with effects as those of settle_gates.
--
-- A process in error recovers by a repair that succeeds, or when the task that broke it was run again and did not
-- fail: then what is held waits again.
CREATE FUNCTION settle_tasks(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_grace              double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_token              bigint[],
    p_outcome            text[],
    p_expires_after      double precision[],
    p_response           bytea[],
    p_aux_state          bytea[],
    p_metadata           jsonb[],
    p_result             bytea[],
    p_retry_after        double precision[],
    p_attempt_count      integer[],
    p_error_code         integer[],
    p_error_reason       text[],
    p_error_message      text[],
    p_error_rejected     boolean[],
    p_error_metadata     json[],
    p_timer              text[],
    p_timer_at           timestamptz[],
    p_timer_after        double precision[],
    p_timer_args         bytea[],
    p_timer_trace        json[],
    p_timer_timeout      double precision[],
    p_history_after      bigint[],
    p_history_limit      integer[],
    p_history_backward   boolean[],
    p_events_until       integer[],
    e_payload            bytea[],
    e_format_version     integer[],
    e_metadata           json[],
    p_starvation_timeout double precision,
    p_timer_constraints  json[],
    p_cancels            boolean[],
    p_state_version      integer[],
    m_item               integer[],
    m_number             integer[],
    m_kind               text[],
    m_slot               smallint[],
    m_namespace          text[],
    m_process_id         text[],
    m_args               bytea[],
    m_caller_context     json[],
    m_trace_context      json[],
    m_constraints        json[],
    m_metadata           jsonb[],
    p_timers             json[],
    m_reply              text[],
    p_failure            json[],
    p_tried_for          double precision[]
)
RETURNS SETOF settled_task
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_row         settled_task;
    v_item        integer;
    v_now         timestamptz;
    v_steps       settling[];
    v_has_waiting boolean;
    v_released    tid[];      -- leases after which the worker does not continue
    v_slots       smallint[]; -- of these leases
    v_count       bigint;
    v_cancelled   jsonb;
    v_special     integer[];  -- items that need one of the next ones, or may
    v_gated       integer[];  -- items whose processes are gated, or are by the timer that they set
    v_broken      integer[];  -- items whose processes are in error
    v_recovering  integer[];  -- those of them whose processes recover
    v_recovered   process_key[];
    v_ends        jsonb;      -- as describe_ends
    v_timed       integer[];  -- items whose timers settle_timers changes
    v_dropped     jsonb;      -- the timers that it has cancelled
    v_forgets     boolean;    -- whether a task with memos ends
    v_answering   integer[];  -- items whose processes have reply requests
    v_changes     integer[];  -- those of them whose processes change their status, or may
    v_moves       status_change[];  -- for the counts of processes
    v_status      process_status;   -- these four of an item that comes alone
    v_task_id     bigint;
    v_event_count integer;
    v_is_plain    boolean;
BEGIN
    -- A step that succeeds on a process where nothing waits, and comes alone: plain statements by key take a fraction
    -- of what it costs to start those for a batch. What turns out to be anything else goes on below, under the lock.
    IF cardinality(p_token) = 1 AND p_outcome[1] = 'finish' AND p_timer IS NULL AND p_timers IS NULL
        AND m_item IS NULL
    THEN
        SELECT p.status, p.status_changed_at, p.last_event_id,
            p.status IN ('init', 'running') AND NOT (
                p.is_gated OR p.awaited_by IS NOT NULL OR p.has_named_timers OR p.has_reply_requests)
        INTO v_status, v_row.status_changed_at, v_row.last_event_id, v_is_plain
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot[1], p_namespace[1], p_process_id[1])
        FOR NO KEY UPDATE;

        v_now := coalesce(p_now, clock_timestamp());

        IF v_is_plain THEN
            DELETE FROM running r
            WHERE (r.slot, r.namespace, r.process_id) = (p_slot[1], p_namespace[1], p_process_id[1])
                AND r.token = p_token[1]
                AND r.has_memos IS NOT TRUE
                AND (
                    SELECT s.task_id
                    FROM schedule s
                    WHERE (s.slot, s.namespace, s.process_id)
                        = (p_slot[1], p_namespace[1], p_process_id[1])
                    LIMIT 1
                ) IS NULL
            RETURNING r.task_id INTO v_task_id;
        END IF;

        IF v_task_id IS NOT NULL THEN
            v_event_count := coalesce(cardinality(e_payload), 0);
            FOR n IN 1 .. v_event_count LOOP
                INSERT INTO events (
                    slot, namespace, process_id, event_id, task_id, occurred_at, format_version,
                    payload, metadata
                )
                VALUES (
                    p_slot[1], p_namespace[1], p_process_id[1], v_row.last_event_id + n, v_task_id,
                    v_now, coalesce(e_format_version[n], 0), e_payload[n], e_metadata[n]
                );
            END LOOP;

            v_row.item := 1;
            v_row.settled_at := v_now;
            v_row.process_status := 'running';
            v_row.last_event_id := v_row.last_event_id + v_event_count;
            IF v_status = 'init' THEN
                v_row.status_changed_at := v_now;
                INSERT INTO process_counts (namespace, status_before, status_after, process_count)
                VALUES (p_namespace[1], 'init', 'running', 1);
            END IF;

            UPDATE processes p
            SET status = 'running',
                previous_status = CASE
                    WHEN v_status = 'running' THEN p.previous_status ELSE v_status END,
                status_changed_at = v_row.status_changed_at,
                aux_state = coalesce(p_aux_state[1], p.aux_state),
                state_version = CASE
                    WHEN p_aux_state[1] IS NULL THEN p.state_version
                    ELSE coalesce(p_state_version[1], 0)
                END,
                metadata = coalesce(p_metadata[1], p.metadata),
                last_event_id = v_row.last_event_id
            WHERE (p.slot, p.namespace, p.process_id) = (p_slot[1], p_namespace[1], p_process_id[1]);

            UPDATE tasks t
            SET status = 'finished',
                tried_for = NULL,
                finished_at = v_now,
                response = p_response[1],
                error_code = NULL,
                error_reason = NULL,
                error_message = NULL,
                error_rejected = NULL,
                error_metadata = NULL,
                first_event_id = CASE
                    WHEN v_event_count > 0 THEN v_row.last_event_id - v_event_count + 1 END,
                event_count = v_event_count
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (p_slot[1], p_namespace[1], p_process_id[1], v_task_id)
            RETURNING t.reply_to INTO v_row.reply_to;
            ASSERT FOUND, 'a lease without its task';
            RETURN NEXT v_row;
            RETURN;
        END IF;
        v_row := NULL;
    END IF;

    -- Most items go no further than these flags, so that what others need costs them nothing.
    SELECT array_agg(i.item) FILTER (WHERE p.is_special
        OR p_timer_constraints[i.item] IS NOT NULL OR p_timers[i.item] IS NOT NULL)
    INTO v_special
    FROM (
        SELECT i.item::integer AS item, p_slot[i.item] AS slot, p_namespace[i.item] AS namespace,
            p_process_id[i.item] AS process_id
        FROM unnest(p_token) WITH ORDINALITY AS i (token, item)
        ORDER BY slot, namespace, process_id
    ) i
    CROSS JOIN LATERAL (
        SELECT p.is_gated OR p.awaited_by IS NOT NULL OR p.has_named_timers OR p.has_reply_requests
            OR p.status = 'error' AS is_special
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
        FOR NO KEY UPDATE
    ) p;

    v_now := coalesce(p_now, clock_timestamp());

    IF v_special IS NOT NULL THEN
        SELECT array_agg(i.item)
                FILTER (WHERE p.is_gated OR p_timer_constraints[i.item] IS NOT NULL
                    OR (p_timers[i.item] IS NOT NULL AND EXISTS (
                        SELECT
                        FROM json_array_elements(p_timers[i.item]) AS c
                        WHERE c -> 'constraints' IS NOT NULL))),
            array_agg(i.item) FILTER (WHERE p.status = 'error'),
            array_agg(i.item) FILTER (WHERE p_timers[i.item] IS NOT NULL
                OR (p.has_named_timers AND p_timer[i.item] IS NOT NULL)
                OR (p.status = 'error' AND p_outcome[i.item] = 'finish')),
            jsonb_agg(jsonb_build_array(
                p.namespace, p.process_id, p.init_task_id, NULL, NULL, NULL, NULL, NULL, p.awaited_by))
                FILTER (WHERE p.awaited_by IS NOT NULL AND (
                    p_outcome[i.item] IN ('complete', 'break', 'remove')
                    OR (p_outcome[i.item] = 'fail' AND p.status = 'error'))),
            array_agg(i.item) FILTER (WHERE p.has_reply_requests),
            array_agg(i.item) FILTER (WHERE p.has_reply_requests
                AND (p.status = 'error' OR p_outcome[i.item] IN ('complete', 'break')))
        INTO v_gated, v_broken, v_timed, v_ends, v_answering, v_changes
        FROM unnest(v_special) AS i (item)
        CROSS JOIN LATERAL (
            SELECT p.namespace, p.process_id, p.status, p.init_task_id, p.awaited_by, p.is_gated,
                p.has_named_timers, p.has_reply_requests
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
            OFFSET 0
        ) p;

        IF v_ends IS NOT NULL THEN
            v_row.effects := v_ends;
            RETURN NEXT v_row;
        END IF;

        IF v_answering IS NOT NULL AND 'remove' = ANY (p_outcome) THEN
            -- delete_processes answers for these.
            v_row.effects := describe_senders(ARRAY(
                SELECT (p_slot[a.item], p_namespace[a.item], p_process_id[a.item])::process_key
                FROM unnest(v_answering) AS a (item)
                WHERE p_outcome[a.item] = 'remove'));
            IF v_row.effects IS NOT NULL THEN
                RETURN NEXT v_row;
            END IF;
        END IF;

        IF v_gated IS NOT NULL THEN
            -- What comes next there is a matter of gates too, which are looked at in the end.
            FOREACH v_item IN ARRAY v_gated LOOP
                p_expires_after[v_item] := NULL;
            END LOOP;
            PERFORM requeue_gated_tasks(
                p_slot, p_namespace, p_process_id, p_token, p_outcome, p_timer, p_cancels, p_timers);
        END IF;

        IF v_broken IS NOT NULL THEN
            SELECT array_agg(b.item) FILTER (WHERE p_outcome[b.item] <> 'complete'),
                array_agg((r.slot, r.namespace, r.process_id)::process_key)
            INTO v_recovering, v_recovered
            FROM unnest(v_broken) AS b (item)
            CROSS JOIN LATERAL find_process(p_slot[b.item], p_namespace[b.item], p_process_id[b.item]) p
            JOIN running r
                ON (r.slot, r.namespace, r.process_id, r.token)
                    = (p.slot, p.namespace, p.process_id, p_token[b.item])
            WHERE p_outcome[b.item] IN ('finish', 'complete')
                OR (p_outcome[b.item] = 'fail' AND r.task_id = p.corrupted_by);
            PERFORM release_held(p_replica_id, v_recovered);
        END IF;

        IF v_timed IS NOT NULL THEN
            v_dropped := settle_timers(
                v_now, p_replica_id, v_timed, p_slot, p_namespace, p_process_id, p_token, p_outcome, p_timer,
                p_timer_at, p_timer_after, p_timer_args, p_timer_trace, p_timer_timeout, p_history_after,
                p_history_limit, p_history_backward, p_timer_constraints, p_timers);
            -- From here on these steps leave the timers as they are now.
            FOREACH v_item IN ARRAY v_timed LOOP
                p_timer[v_item] := NULL;
            END LOOP;
        END IF;
    END IF;

    IF m_item IS NOT NULL THEN
        PERFORM write_messages(
            v_now, p_slot, p_namespace, p_process_id, p_token, m_item, m_number, m_kind, m_slot,
            m_namespace, m_process_id, m_args, m_caller_context, m_trace_context, m_constraints,
            m_metadata, m_reply);
    END IF;

    -- The rare ones first, by a function of their own: nothing of their processes is left after.
    IF 'remove' = ANY (p_outcome) THEN
        v_row := NULL;
        v_row.settled_at := v_now;
        FOR v_row.item, v_row.reply_to, v_row.cancelled IN
            SELECT *
            FROM settle_removals(
                v_now, p_slot, p_namespace, p_process_id, p_token, p_outcome, p_response,
                p_error_code, p_error_reason, p_error_message, p_error_rejected, p_error_metadata)
        LOOP
            RETURN NEXT v_row;
        END LOOP;
    END IF;

    -- OFFSET 0 keeps the planner from melting the parts into one: a look-up stays one by the key. There are few such
    -- parts, since each of them, and each of their columns, costs at the start of the statement.
    WITH seen AS (
        SELECT i.item::integer, r.slot, r.namespace, r.process_id, r.task_id, r.task_type,
            r.ctid AS running_row, r.has_memos, p.ctid AS process_row,
            p.status, p.status_changed_at, p.last_event_id,
            c.ctid AS call_row, c.task_id AS call_id,
            k.ctid AS timer_row, k.task_id AS timer_id, k.due_at AS timer_due_at,
            p_outcome[i.item] AS outcome,
            coalesce(p_events_until[i.item], 0) - coalesce(p_events_until[i.item - 1], 0)
                AS event_count,
            i.item = ANY (v_recovering) AS recovers,
            CASE
                WHEN p_outcome[i.item] = 'retry' AND (
                    k.task_id IS NULL
                    OR r.task_type NOT IN ('timeout', 'remove')
                    OR (v_now + make_interval(secs => p_retry_after[i.item]), r.task_id)
                        < (k.due_at, k.task_id)
                ) THEN 'retried'
                WHEN p_timer[i.item] <> 'unset' THEN 'set'
                WHEN p_timer[i.item] IS NULL AND k.task_id IS NOT NULL AND p_outcome[i.item] <> 'complete'
                    AND (p_outcome[i.item] <> 'break' OR p.status = 'error') THEN 'kept'
            END AS timer_origin,
            (
                SELECT t.ctid
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (r.slot, r.namespace, r.process_id, r.task_id)
            ) AS task_row
        FROM unnest(p_token) WITH ORDINALITY AS i (token, item)
        CROSS JOIN LATERAL (
            SELECT r.ctid, r.slot, r.namespace, r.process_id, r.task_id, r.task_type, r.has_memos
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
                AND r.token = i.token
            OFFSET 0
        ) r
        CROSS JOIN LATERAL (
            SELECT p.ctid, p.status, p.status_changed_at, p.last_event_id
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (r.slot, r.namespace, r.process_id)
            OFFSET 0
        ) p
        LEFT JOIN LATERAL (
            SELECT s.ctid, s.task_id
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (r.slot, r.namespace, r.process_id)
                AND s.task_type NOT IN ('timeout', 'remove')
                -- A repair that comes after a success has nothing to do.
                AND (s.task_type <> 'repair' OR (i.item = ANY (v_recovering)) IS NOT TRUE)
            ORDER BY s.slot, s.namespace, s.process_id, s.task_id
            LIMIT 1
        ) c ON true
        LEFT JOIN LATERAL (
            SELECT s.ctid, s.task_id, s.due_at
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (r.slot, r.namespace, r.process_id)
                AND s.task_type IN ('timeout', 'remove')
            ORDER BY s.slot, s.namespace, s.process_id, s.due_at, s.task_id
            LIMIT 1
        ) k ON true
        WHERE p_outcome[i.item] <> 'remove'
        OFFSET 0
    )
    SELECT
        array_agg(ROW(
            d.item, d.outcome, d.slot, d.namespace, d.process_id, d.task_id, d.task_type,
            d.process_row, d.running_row, d.task_row,
            CASE
                WHEN d.next_call_id IS NOT NULL THEN d.call_row
                WHEN d.timer_origin = 'kept' THEN d.timer_row
            END,
            d.new_status,
            CASE WHEN d.new_status = d.status THEN d.status_changed_at ELSE v_now END,
            d.last_event_id, d.event_count, d.cancels, d.next_call_id,
            d.timer_origin, d.new_timer_id, d.new_timer_due_at, d.next_id,
            CASE WHEN d.next_id IS NOT NULL THEN nextval('lease_tokens') END
        )::settling),
        bool_or(d.call_id IS NOT NULL OR d.timer_id IS NOT NULL OR d.recovers),
        array_agg(d.running_row) FILTER (WHERE d.next_id IS NULL),
        array_agg(d.slot) FILTER (WHERE d.next_id IS NULL),
        bool_or(d.has_memos AND d.outcome <> 'retry'),
        array_agg((d.namespace, d.status, d.new_status)::status_change)
            FILTER (WHERE d.new_status <> d.status)
    INTO v_steps, v_has_waiting, v_released, v_slots, v_forgets, v_moves
    FROM (
        -- What the worker goes on with: the oldest call queued, or else a timer that is due.
        SELECT q.*,
            CASE
                WHEN p_expires_after[q.item] IS NULL THEN NULL
                WHEN q.next_call_id IS NOT NULL THEN q.next_call_id
                WHEN q.timer_origin <> 'retried' AND q.new_timer_due_at <= v_now
                    THEN q.new_timer_id
            END AS next_id
        FROM (
            SELECT s.*,
                CASE
                    WHEN s.outcome = 'finish' OR s.recovers THEN 'running'
                    WHEN s.outcome = 'complete' THEN 'finished'
                    WHEN s.outcome = 'break' THEN 'error'
                    ELSE s.status
                END::process_status AS new_status,
                -- With this outcome tasks leave the queue: all of them, or the repairs of a process that
                -- recovers. One that comes after a repair that failed is the next to try.
                CASE
                    WHEN s.outcome = 'complete' THEN 'PROCESS_FINISHED'
                    WHEN s.outcome = 'break' AND s.status <> 'error' THEN 'PROCESS_FAILED'
                    WHEN s.recovers THEN 'PROCESS_IS_RUNNING'
                END AS cancels,
                -- A call that is tried again keeps its place before the others; a timer yields to them.
                CASE
                    WHEN s.call_id IS NULL
                        OR s.outcome = 'complete'
                        OR (s.outcome = 'break' AND s.status <> 'error')
                        OR (s.outcome = 'retry' AND s.task_type NOT IN ('timeout', 'remove')) THEN NULL
                    ELSE s.call_id
                END AS next_call_id,
                CASE s.timer_origin
                    WHEN 'set' THEN nextval('task_ids')
                    WHEN 'kept' THEN s.timer_id
                    WHEN 'retried' THEN s.task_id
                END AS new_timer_id,
                CASE s.timer_origin
                    WHEN 'set' THEN coalesce(
                        p_timer_at[s.item], v_now + make_interval(secs => p_timer_after[s.item]))
                    WHEN 'kept' THEN s.timer_due_at
                    WHEN 'retried' THEN v_now + make_interval(secs => p_retry_after[s.item])
                END AS new_timer_due_at
            FROM seen s
            OFFSET 0
        ) q
    ) d;

    IF v_has_waiting THEN
        v_cancelled := settle_waits(
            v_now, p_replica_id, v_steps, p_timer, p_error_code, p_error_reason, p_error_message,
            p_cancels);
    END IF;
    IF v_dropped IS NOT NULL THEN
        SELECT jsonb_object_agg(o.item, merge_json(v_dropped -> o.item, v_cancelled -> o.item))
        INTO v_cancelled
        FROM (
            SELECT jsonb_object_keys(v_dropped) AS item
            UNION
            SELECT jsonb_object_keys(v_cancelled)
        ) o;
    END IF;

    IF e_payload IS NOT NULL THEN
        INSERT INTO events (
            slot, namespace, process_id, event_id, task_id, occurred_at, format_version, payload,
            metadata
        )
        SELECT e.slot, e.namespace, e.process_id, e.last_event_id + e.ordinal, e.task_id, v_now,
            coalesce(e_format_version[e.before + e.ordinal], 0), e_payload[e.before + e.ordinal],
            e_metadata[e.before + e.ordinal]
        FROM (
            SELECT s.slot, s.namespace, s.process_id, s.task_id, s.last_event_id,
                coalesce(p_events_until[s.item - 1], 0) AS before,
                generate_series(1, s.event_count) AS ordinal
            FROM unnest(v_steps) AS s
        ) e;
    END IF;

    IF p_timer IS NOT NULL OR p_retry_after IS NOT NULL THEN
        IF p_timer IS NOT NULL THEN
            INSERT INTO tasks (
                slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
                scheduled_at, first_started_at, started_at, token, step_timeout, history_after,
                history_limit, history_backward, args, trace_context, replica_id
            )
            SELECT s.slot, s.namespace, s.process_id, s.timer_id, p_timer[s.item]::task_type,
                CASE WHEN n.began_at IS NULL THEN 'waiting' ELSE 'running' END::task_status,
                CASE WHEN n.began_at IS NULL THEN 0 ELSE 1 END, v_now, s.timer_due_at,
                n.began_at, n.began_at, CASE WHEN n.began_at IS NOT NULL THEN s.next_token END,
                make_interval(secs => p_timer_timeout[s.item]), p_history_after[s.item],
                p_history_limit[s.item], p_history_backward[s.item],
                coalesce(p_timer_args[s.item], ''), p_timer_trace[s.item],
                CASE WHEN n.began_at IS NOT NULL THEN p_replica_id END
            FROM unnest(v_steps) AS s
            CROSS JOIN LATERAL (SELECT CASE WHEN s.next_id = s.timer_id THEN v_now END AS began_at) n
            WHERE s.timer_origin = 'set';
        END IF;

        -- After settle_waits, which cancels the timer that a step replaces.
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id
        )
        SELECT s.slot, s.namespace, s.process_id, s.timer_id,
            coalesce(p_timer[s.item]::task_type, s.task_type),
            CASE WHEN s.call_id IS NULL THEN 'waiting' ELSE 'blocked' END::task_status,
            s.timer_due_at, coalesce(p_attempt_count[s.item], 0), p_replica_id
        FROM unnest(v_steps) AS s
        WHERE s.timer_origin IN ('set', 'retried') AND s.next_id IS DISTINCT FROM s.timer_id;

        IF p_retry_after IS NOT NULL AND v_has_waiting THEN
            -- Timers that come after another one of their processes.
            INSERT INTO schedule (
                slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id
            )
            SELECT s.slot, s.namespace, s.process_id, s.task_id, s.task_type, 'blocked',
                v_now + make_interval(secs => p_retry_after[s.item]),
                coalesce(p_attempt_count[s.item], 0), p_replica_id
            FROM unnest(v_steps) AS s
            WHERE s.outcome = 'retry' AND s.timer_origin = 'kept';
        END IF;
    END IF;

    IF v_released IS NOT NULL THEN
        DELETE FROM running r
        USING (SELECT unnest(v_released) AS running_row, unnest(v_slots) AS slot) s
        WHERE r.ctid = s.running_row AND r.slot BETWEEN s.slot AND s.slot;
    END IF;

    IF cardinality(v_released) IS DISTINCT FROM cardinality(v_steps) THEN
        UPDATE running r
        SET task_id = n.next_id,
            task_type = t.task_type,
            attempt = t.attempt_count,
            token = n.next_token,
            previous_token = r.token,
            replica_id = p_replica_id,
            leased_at = v_now,
            expires_at = v_now + coalesce(
                t.step_timeout + make_interval(secs => p_grace),
                make_interval(secs => p_expires_after[n.item])),
            has_memos = t.has_memos
        FROM unnest(v_steps) AS n
        CROSS JOIN LATERAL (
            SELECT t.task_type, t.attempt_count, t.step_timeout, t.has_memos
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (n.slot, n.namespace, n.process_id, n.next_id)
            OFFSET 0
        ) t
        WHERE r.ctid = n.running_row AND r.slot BETWEEN n.slot AND n.slot;
    END IF;

    UPDATE processes p
    SET status = s.new_status,
        previous_status = CASE
            WHEN s.new_status = p.status THEN p.previous_status ELSE p.status END,
        status_changed_at = s.status_changed_at,
        detail = NULL,
        corrupted_by = NULL,
        broken_at = NULL,
        failure_id = NULL,
        failure_reason = NULL,
        aux_state = coalesce(p_aux_state[s.item], p.aux_state),
        -- A state without a version replaces one with a version, too.
        state_version = CASE
            WHEN p_aux_state[s.item] IS NULL THEN p.state_version
            ELSE coalesce(p_state_version[s.item], 0)
        END,
        metadata = coalesce(p_metadata[s.item], p.metadata),
        last_event_id = p.last_event_id + s.event_count,
        result = CASE WHEN s.outcome = 'complete' THEN p_result[s.item] ELSE p.result END,
        finished_at = CASE WHEN s.outcome = 'complete' THEN v_now END
    FROM unnest(v_steps) AS s
    WHERE p.ctid = s.process_row AND p.slot BETWEEN s.slot AND s.slot
        AND (s.outcome IN ('finish', 'complete') OR s.cancels = 'PROCESS_IS_RUNNING');

    IF v_moves IS NOT NULL THEN
        IF cardinality(v_moves) = 1 OR v_moves[1] = ALL (v_moves) THEN
            -- A call of count_changes takes four times as long.
            INSERT INTO process_counts (namespace, status_before, status_after, process_count)
            VALUES ((v_moves[1]).namespace, (v_moves[1]).status_before, (v_moves[1]).status_after,
                cardinality(v_moves));
        ELSE
            PERFORM count_changes(v_moves);
        END IF;
    END IF;

    RETURN QUERY
    UPDATE tasks t
    SET status = CASE s.outcome
            WHEN 'finish' THEN 'finished' WHEN 'complete' THEN 'finished'
            WHEN 'retry' THEN 'waiting' ELSE 'error'
        END::task_status,
        attempt_count = coalesce(p_attempt_count[s.item], t.attempt_count),
        -- Of the first attempt that counts.
        first_started_at = CASE
            WHEN p_attempt_count[s.item] = 0 THEN NULL ELSE t.first_started_at END,
        tried_for = make_interval(secs => p_tried_for[s.item]),
        finished_at = CASE WHEN s.outcome <> 'retry' THEN v_now END,
        response = p_response[s.item],
        error_code = p_error_code[s.item],
        error_reason = p_error_reason[s.item],
        error_message = p_error_message[s.item],
        error_rejected = p_error_rejected[s.item],
        error_metadata = p_error_metadata[s.item],
        first_event_id = CASE WHEN s.event_count > 0 THEN s.last_event_id + 1 END,
        event_count = s.event_count
    FROM unnest(v_steps) AS s
    LEFT JOIN LATERAL (
        SELECT n.task_type, n.attempt_count, n.args, n.caller_context, n.trace_context, n.history_after,
            n.history_limit, n.history_backward, n.step_timeout, n.scheduled_at, n.first_started_at,
            n.timer_name, n.has_memos, n.sender, n.tried_for
        FROM tasks n
        WHERE (n.slot, n.namespace, n.process_id, n.task_id)
            = (s.slot, s.namespace, s.process_id, s.next_id)
        OFFSET 0
    ) n ON true
    WHERE t.ctid = s.task_row AND t.slot BETWEEN s.slot AND s.slot
    RETURNING s.item, v_now, s.new_status, s.status_changed_at,
        s.last_event_id + s.event_count,
        CASE WHEN s.outcome <> 'retry' THEN t.reply_to END,
        v_cancelled -> s.item::text,
        CASE WHEN coalesce(s.next_id, s.call_id) IS NULL THEN s.timer_id END,
        CASE WHEN coalesce(s.next_id, s.call_id) IS NULL THEN s.timer_due_at END,
        s.next_id, n.task_type, n.attempt_count, s.next_token,
        n.args, n.caller_context, n.trace_context, n.history_after, n.history_limit,
        n.history_backward, extract(epoch FROM n.step_timeout)::double precision,
        n.scheduled_at, n.first_started_at, NULL::jsonb, NULL::jsonb, NULL::jsonb, n.timer_name,
        n.has_memos, n.sender, extract(epoch FROM n.tried_for)::double precision;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    ASSERT v_count = coalesce(cardinality(v_steps), 0), 'a lease without its task';

    IF v_forgets OR v_special IS NOT NULL OR 'break' = ANY (p_outcome) THEN
        IF 'break' = ANY (p_outcome) THEN
            UPDATE processes p
            SET status = 'error',
                previous_status = CASE WHEN p.status = 'error' THEN p.previous_status ELSE p.status END,
                status_changed_at = s.status_changed_at,
                detail = coalesce(p_error_message[s.item], ''),
                corrupted_by = s.task_id,
                broken_at = v_now,
                failure_id = make_failure_id(s.namespace, p_error_reason[s.item], p_failure[s.item]),
                failure_reason = coalesce(p_error_reason[s.item], '')
            FROM unnest(v_steps) AS s
            WHERE p.ctid = s.process_row AND p.slot BETWEEN s.slot AND s.slot
                AND s.outcome = 'break';

            IF p_failure IS NOT NULL THEN
                PERFORM note_failures(
                    array_agg(s.namespace), array_agg(s.process_id), array_agg(v_now),
                    array_agg(p_error_reason[s.item]), array_agg(p_failure[s.item]))
                FROM unnest(v_steps) AS s
                WHERE s.outcome = 'break';
            END IF;
        END IF;

        IF v_forgets OR v_broken IS NOT NULL THEN
            PERFORM forget_memos(ARRAY(
                SELECT (s.slot, s.namespace, s.process_id)::process_key
                FROM unnest(v_steps) AS s));
        END IF;

        IF v_special IS NOT NULL THEN
            v_row := NULL;
            IF v_answering IS NOT NULL THEN
                -- A step that leaves its process as it is ends no task but its own.
                SELECT settle_replies(
                    v_now, array_agg((s.slot, s.namespace, s.process_id)::process_key),
                    array_agg(CASE WHEN v_changes IS NULL OR s.item <> ALL (v_changes) THEN s.task_id END),
                    false)
                INTO v_row.effects
                FROM unnest(v_steps) AS s
                WHERE s.item = ANY (v_answering) AND s.outcome <> 'retry'
                HAVING v_steps IS NOT NULL;
                IF v_row.effects IS NOT NULL THEN
                    RETURN NEXT v_row;
                END IF;
            END IF;

            IF v_gated IS NOT NULL THEN
                v_row.effects := settle_gates_batch(
                    v_now, p_replica_id, p_starvation_timeout, v_gated, p_slot, p_namespace, p_process_id, v_steps,
                    p_timer_constraints);
                IF v_row.effects IS NOT NULL THEN
                    RETURN NEXT v_row;
                END IF;
            END IF;
        END IF;
    END IF;
END;
$$;
