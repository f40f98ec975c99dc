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
        SELECT i.item::integer, i.slot, i.namespace, i.process_id, r.task_id
        FROM unnest(p_slot, p_namespace, p_process_id, p_token, p_outcome)
            WITH ORDINALITY AS i (slot, namespace, process_id, token, outcome, item)
        CROSS JOIN LATERAL (
            SELECT r.task_id, r.token
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id) = (i.slot, i.namespace, i.process_id)
            OFFSET 0
        ) r
        WHERE i.outcome = 'remove' AND r.token = i.token
    LOOP
        item := v_item.item;
        UPDATE tasks t
        SET status = CASE WHEN p_error_code[item] IS NULL THEN 'finished' ELSE 'error' END::task_status,
            finished_at = p_now, response = p_response[item], error_code = p_error_code[item],
            error_reason = p_error_reason[item], error_message = p_error_message[item],
            error_rejected = p_error_rejected[item], error_metadata = p_error_metadata[item],
            -- A process whose first step was rejected never came to be: its key is free.
            idempotency_key = CASE
                WHEN t.task_type <> 'init' OR p_error_rejected[item] IS NOT TRUE
                THEN t.idempotency_key
            END
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (v_item.slot, v_item.namespace, v_item.process_id, v_item.task_id)
        RETURNING t.reply_to INTO reply_to;
        cancelled := delete_processes(
            p_now - interval '1 minute',
            ARRAY[(v_item.slot, v_item.namespace, v_item.process_id)::process_key]);
        RETURN NEXT;
    END LOOP;
END;
$$;
