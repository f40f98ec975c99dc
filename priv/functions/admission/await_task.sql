-- Finds a task by id or idempotency key and, if it has not ended, notes that a caller waits for it in this replica.
-- Locks: the process; the task.
-- Returns: one row; process_exists tells an unknown process from an unknown task.
CREATE FUNCTION await_task(
    p_replica_id      bigint,
    p_slot            smallint,
    p_namespace       text,
    p_process_id      text,
    p_task_id         bigint,
    p_idempotency_key text
)
RETURNS TABLE (
    process_exists boolean, task_id bigint, task_type task_type, status task_status,
    response bytea, error_code integer, error_reason text, error_message text,
    error_rejected boolean, error_metadata json
)
BY KEY
SET lock_timeout = '2s'
AS $$
BEGIN
    PERFORM
    FROM processes p
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
    FOR NO KEY UPDATE;
    process_exists := FOUND;

    p_task_id := coalesce(p_task_id, (
        SELECT t.task_id
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.idempotency_key)
            = (p_slot, p_namespace, p_process_id, p_idempotency_key)
    ), (
        SELECT a.task_id
        FROM find_reply(p_slot, p_namespace, p_process_id, p_idempotency_key) a
    ));

    UPDATE tasks t
    SET reply_to = array_append(t.reply_to, p_replica_id)
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id)
        AND t.status NOT IN ('finished', 'error', 'cancelled')
        AND (t.reply_to IS NULL OR p_replica_id <> ALL (t.reply_to));

    SELECT w.*
    INTO task_id, task_type, status, response, error_code, error_reason, error_message,
        error_rejected, error_metadata
    FROM (
        SELECT t.task_id, t.task_type, t.status, t.response, t.error_code, t.error_reason,
            t.error_message, t.error_rejected, t.error_metadata
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p_slot, p_namespace, p_process_id, p_task_id)
        UNION ALL
        SELECT a.task_id, a.task_type, a.status, a.response, a.error_code, a.error_reason,
            a.error_message, a.error_rejected, a.error_metadata
        FROM replies a
        WHERE (a.slot, a.namespace, a.process_id, a.task_id)
            = (p_slot, p_namespace, p_process_id, p_task_id)
    ) w
    LIMIT 1;
    RETURN NEXT;
END;
$$;
