-- Removes the processes of those items of settle_tasks whose outcome is `remove` and whose lease holds. The answer
-- of the step is kept in replies, for a caller who waits in another replica.
-- Locks: none of its own; settle_tasks has locked the processes.
-- Returns: one row per item removed; cancelled as in settle_tasks.
CREATE FUNCTION settle_removals(
    p_now            timestamptz,
    p_slot           smallint[],
    p_namespace      text[],
    p_process_id     text[],
    p_token          bigint[],
    p_outcome        text[],
    p_response       bytea[],
    p_error_code     integer[],
    p_error_reason   text[],
    p_error_message  text[],
    p_error_rejected boolean[],
    p_error_metadata json[]
)
RETURNS TABLE (item integer, reply_to bigint[], cancelled jsonb)
AS $$
DECLARE
    v_item record;
BEGIN
    FOR v_item IN
        SELECT i.item::integer, t.slot, t.namespace, t.process_id, t.task_id, t.task_type,
            t.reply_to, t.idempotency_key, t.fingerprint
        FROM unnest(p_slot, p_namespace, p_process_id, p_token, p_outcome)
            WITH ORDINALITY AS i (slot, namespace, process_id, token, outcome, item)
        CROSS JOIN LATERAL (
            SELECT r.task_id, r.token
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id) = (i.slot, i.namespace, i.process_id)
            OFFSET 0
        ) r
        CROSS JOIN LATERAL (
            SELECT t.slot, t.namespace, t.process_id, t.task_id, t.task_type, t.reply_to,
                t.idempotency_key, t.fingerprint
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (i.slot, i.namespace, i.process_id, r.task_id)
            OFFSET 0
        ) t
        WHERE i.outcome = 'remove' AND r.token = i.token
    LOOP
        IF v_item.task_type IN ('init', 'call', 'repair') OR v_item.idempotency_key IS NOT NULL THEN
            INSERT INTO replies (
                task_id, task_type, status, response, error_code, error_reason, error_message,
                error_rejected, error_metadata, created_at, namespace, process_id,
                idempotency_key, fingerprint
            ) VALUES (
                v_item.task_id, v_item.task_type,
                CASE
                    WHEN p_error_code[v_item.item] IS NULL THEN 'finished' ELSE 'error'
                END::task_status,
                p_response[v_item.item], p_error_code[v_item.item], p_error_reason[v_item.item],
                p_error_message[v_item.item], p_error_rejected[v_item.item],
                p_error_metadata[v_item.item], p_now, v_item.namespace, v_item.process_id,
                -- A process that was refused its first step never came to be: its key is free.
                CASE
                    WHEN v_item.task_type <> 'init' OR p_error_rejected[v_item.item] IS NOT TRUE
                    THEN v_item.idempotency_key
                END,
                v_item.fingerprint
            );
        END IF;
        item := v_item.item;
        reply_to := v_item.reply_to;
        cancelled := delete_process(
            p_now - interval '1 minute', v_item.slot, v_item.namespace, v_item.process_id,
            v_item.task_id);
        RETURN NEXT;
    END LOOP;
END;
$$;
