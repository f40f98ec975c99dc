-- Answers the messages whose tasks have ended, or, for starts, whose processes have: writes a message back, which
-- becomes a task of type reply. A task that broke its process may still be run again: it is answered once the process
-- is out of error, or gone. The args of the reply are JSON: name, kind, namespace and process_id of who answers, task_id
-- and number of the message, and response (base64) or error.
-- p_task_id: of each process, the only task that can have ended; null: any.
-- p_removes: the processes are about to be deleted.
-- Locks: none of its own; the caller has locked the processes.
-- Returns: the processes that have answered, as describe_senders; null: none.
CREATE FUNCTION settle_replies(
    p_now timestamptz, p_key process_key[], p_task_id bigint[], p_removes boolean
)
RETURNS jsonb
BY ITEM
AS $$
DECLARE
    v_senders process_key[];
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT q.*, p.init_task_id,
            CASE
                WHEN q.kind = 'start' AND p.status = 'finished' AND p.end_reason IS NULL
                    THEN jsonb_build_object('response', encode(coalesce(p.result, ''), 'base64'))
                WHEN q.kind <> 'start' AND t.status = 'finished'
                    THEN jsonb_build_object('response', encode(coalesce(t.response, ''), 'base64'))
                WHEN q.kind = 'start' AND p.status = 'finished'
                    THEN describe_error(9, 'PROCESS_TERMINATED', p.end_reason)
                WHEN t.finished_at IS NOT NULL AND (q.kind <> 'start' OR t.error_rejected)
                    THEN describe_error(
                        coalesce(t.error_code, 10), coalesce(t.error_reason, 'TASK_CANCELLED'),
                        t.error_message, t.error_rejected, t.error_metadata)
                ELSE describe_error(10, 'PROCESS_REMOVED', 'the process was removed')
            END AS outcome
        FROM unnest(p_key, p_task_id) AS k (slot, namespace, process_id, task_id)
        CROSS JOIN LATERAL (
            SELECT p.status, p.corrupted_by, p.init_task_id, p.result, p.end_reason
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
                AND p.has_reply_requests
            OFFSET 0
        ) p
        CROSS JOIN LATERAL (
            SELECT q.*
            FROM reply_requests q
            WHERE (q.slot, q.namespace, q.process_id) = (k.slot, k.namespace, k.process_id)
                AND q.task_id BETWEEN coalesce(k.task_id, 0) AND coalesce(k.task_id, 9223372036854775807)
            OFFSET 0
        ) q
        LEFT JOIN LATERAL (
            SELECT t.*
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (q.slot, q.namespace, q.process_id, q.task_id)
            OFFSET 0
        ) t ON true
        WHERE p_removes
            OR CASE
                WHEN q.kind = 'start' THEN p.status = 'finished'
                ELSE t.finished_at IS NOT NULL
                    AND NOT (p.status = 'error' AND p.corrupted_by IS NOT DISTINCT FROM t.task_id)
            END
    ),
    answered AS (
        DELETE FROM reply_requests q
        USING ended e
        WHERE (q.slot, q.namespace, q.process_id, q.task_id)
            = (e.slot, e.namespace, e.process_id, e.task_id)
    ),
    written AS (
        INSERT INTO messages (
            slot, namespace, process_id, message_id, init_task_id, task_id, number, kind,
            receiver_slot, receiver_namespace, receiver_id, receiver_init_id, args, created_at,
            deliver_at
        )
        SELECT e.slot, e.namespace, e.process_id, nextval('message_ids'), e.init_task_id, e.task_id,
            0, 'reply', e.sender_slot, e.sender_namespace, e.sender_id, e.sender_init_id,
            convert_to((e.outcome || jsonb_build_object(
                'name', e.reply, 'kind', e.kind, 'namespace', e.namespace,
                'process_id', e.process_id, 'task_id', e.sender_task_id, 'number', e.number
            ))::text, 'UTF8'),
            p_now, p_now
        FROM (SELECT e.* FROM ended e ORDER BY e.task_id) e
        RETURNING slot, namespace, process_id
    )
    SELECT array_agg(DISTINCT (w.slot, w.namespace, w.process_id)::process_key)
    INTO v_senders
    FROM written w;

    IF v_senders IS NULL OR p_removes THEN
        RETURN describe_senders(v_senders);
    END IF;
    UPDATE processes p
    SET has_reply_requests = false
    FROM unnest(v_senders) AS k
    WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        AND (
            SELECT q.task_id
            FROM reply_requests q
            WHERE (q.slot, q.namespace, q.process_id) = (k.slot, k.namespace, k.process_id)
            LIMIT 1
        ) IS NULL;
    RETURN describe_senders(v_senders);
END;
$$;
