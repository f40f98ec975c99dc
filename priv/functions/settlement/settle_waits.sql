-- Updates the waiting tasks of a batch's processes as settle_tasks has decided: cancels those that can never run and
-- the timer that a step replaces or unsets; begins the task that the worker continues with; otherwise makes the
-- first waiting task due, or wakes the parked timer.
--
-- Of a process that breaks, what was acknowledged, or has begun, is held, unless p_cancels. Cancelled are requests whose
-- callers wait, since they learn of it, and joins, which the job adds again. They record which task broke the process, with
-- what code and reason. What has constraints is held by these (find_gated_cause).
-- An idempotency key whose task is cancelled before its step began is free again.
-- Locks: none of its own; settle_tasks has locked the processes.
-- Returns: the cancelled tasks, as in settle_tasks, by the numbers of the items; null: none.
CREATE FUNCTION settle_waits(
    p_now        timestamptz,
    p_replica_id bigint,
    p_steps      settling[],
    p_timer      text[],
    p_code       integer[],
    p_reason     text[],
    p_message    text[],
    p_cancels    boolean[]
)
RETURNS jsonb
AS $$
DECLARE
    v_cancels   boolean;
    v_holds     boolean;
    v_begins    boolean;
    v_brings_on boolean;
    v_cancelled jsonb;
BEGIN
    SELECT bool_or(s.cancels IS NOT NULL OR p_timer[s.item] IS NOT NULL),
        bool_or(s.cancels = 'PROCESS_FAILED' AND p_cancels[s.item] IS NULL),
        bool_or(s.waiting_row IS NOT NULL AND s.next_id IS NOT NULL),
        bool_or(s.waiting_row IS NOT NULL AND s.next_id IS NULL)
    INTO v_cancels, v_holds, v_begins, v_brings_on
    FROM unnest(p_steps) AS s;

    IF v_holds THEN
        WITH kept AS (
            DELETE FROM schedule w
            USING unnest(p_steps) AS s, tasks t
            WHERE s.cancels = 'PROCESS_FAILED'
                AND p_cancels[s.item] IS NULL
                AND (w.slot, w.namespace, w.process_id) = (s.slot, s.namespace, s.process_id)
                AND (t.slot, t.namespace, t.process_id, t.task_id)
                    = (w.slot, w.namespace, w.process_id, w.task_id)
                AND (t.is_acknowledged OR w.attempt > 0 OR t.has_memos OR w.task_type IN ('timeout', 'remove'))
            RETURNING w.*
        )
        INSERT INTO held (
            slot, namespace, process_id, task_id, task_type, due_at, attempt, held_at
        )
        SELECT k.slot, k.namespace, k.process_id, k.task_id, k.task_type,
            CASE WHEN k.task_type IN ('timeout', 'remove') THEN k.due_at END, k.attempt, p_now
        FROM kept k
        WHERE NOT EXISTS (
            SELECT
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                = (k.slot, k.namespace, k.process_id, k.task_id)
        );
    END IF;

    IF v_cancels THEN
        WITH vain AS MATERIALIZED (
            SELECT s.item, s.slot, w.cancels, s.task_id AS by_task_id, w.waiting_row, t.task_row
            FROM unnest(p_steps) AS s
            CROSS JOIN LATERAL (
                SELECT w.ctid AS waiting_row, w.slot, w.namespace, w.process_id, w.task_id,
                    w.task_type,
                    CASE WHEN s.cancels <> 'PROCESS_IS_RUNNING' OR w.task_type = 'repair'
                        THEN s.cancels END AS cancels
                FROM schedule w
                WHERE (w.slot, w.namespace, w.process_id) = (s.slot, s.namespace, s.process_id)
                    AND (s.cancels IS NOT NULL OR p_timer[s.item] IS NOT NULL)
                OFFSET 0
            ) w
            CROSS JOIN LATERAL (
                SELECT t.ctid AS task_row
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (w.slot, w.namespace, w.process_id, w.task_id)
                OFFSET 0
            ) t
            WHERE w.cancels IS NOT NULL
                OR (p_timer[s.item] IS NOT NULL AND w.task_type IN ('timeout', 'remove'))
        ),
        dropped AS (
            DELETE FROM schedule s
            USING vain v
            WHERE s.ctid = v.waiting_row AND s.slot BETWEEN v.slot AND v.slot
        ),
        cancelled AS (
            UPDATE tasks t
            SET status = 'cancelled', finished_at = p_now,
                error_code = CASE WHEN v.cancels IS NOT NULL THEN 9 END,
                error_reason = v.cancels,
                error_message = CASE
                    WHEN v.cancels IS NOT NULL THEN coalesce(p_message[v.item], '') END,
                error_rejected = CASE WHEN v.cancels IS NOT NULL THEN false END,
                error_metadata = CASE WHEN v.cancels = 'PROCESS_FAILED'
                    THEN json_build_object(
                        'broken_by', v.by_task_id::text,
                        'failure_code', p_code[v.item]::text,
                        'failure_reason', p_reason[v.item]) END,
                idempotency_key = CASE WHEN t.attempt_count > 0 THEN t.idempotency_key END
            FROM vain v
            WHERE t.ctid = v.task_row AND t.slot BETWEEN v.slot AND v.slot
            RETURNING v.item, t.slot, t.namespace, t.process_id, t.task_id, t.task_type, t.reply_to,
                t.has_memos
        ),
        forgotten AS (
            DELETE FROM memos m
            USING cancelled c
            WHERE c.has_memos
                AND (m.slot, m.namespace, m.process_id, m.task_id)
                    = (c.slot, c.namespace, c.process_id, c.task_id)
        ),
        effects AS (
            SELECT c.item, jsonb_agg(jsonb_build_array(
                c.task_id, c.task_type, coalesce(to_jsonb(c.reply_to), '[]'))) AS tasks
            FROM cancelled c
            GROUP BY c.item
        )
        SELECT jsonb_object_agg(o.item, o.tasks)
        INTO v_cancelled
        FROM effects o;
    END IF;

    IF v_begins THEN
        WITH taken AS (
            DELETE FROM schedule s
            USING unnest(p_steps) AS n
            WHERE s.ctid = n.waiting_row AND s.slot BETWEEN n.slot AND n.slot
                AND n.next_id IS NOT NULL
            RETURNING s.slot, s.namespace, s.process_id, s.task_id, s.attempt, n.next_token
        )
        UPDATE tasks t
        SET status = 'running',
            attempt_count = n.attempt + 1,
            scheduled_at = coalesce(t.scheduled_at, p_now),
            first_started_at = coalesce(t.first_started_at, p_now),
            started_at = p_now,
            token = n.next_token,
            replica_id = p_replica_id
        FROM taken n
        CROSS JOIN LATERAL (
            SELECT b.ctid AS task_row
            FROM tasks b
            WHERE (b.slot, b.namespace, b.process_id, b.task_id)
                = (n.slot, n.namespace, n.process_id, n.task_id)
            OFFSET 0
        ) b
        WHERE t.ctid = b.task_row AND t.slot BETWEEN n.slot AND n.slot;
    END IF;

    IF v_brings_on THEN
        UPDATE schedule s
        SET status = 'waiting',
            due_at = CASE WHEN n.call_id IS NULL THEN s.due_at ELSE p_now END
        FROM unnest(p_steps) AS n
        WHERE s.ctid = n.waiting_row AND s.slot BETWEEN n.slot AND n.slot
            AND n.next_id IS NULL;
    END IF;

    RETURN v_cancelled;
END;
$$;
