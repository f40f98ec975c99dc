-- The answer that a process which is gone has left under an idempotency key, the latest.
-- Returns: a row or none.
CREATE FUNCTION find_reply(p_slot smallint, p_namespace text, p_process_id text, p_idempotency_key text)
RETURNS SETOF replies
LANGUAGE sql
STABLE
AS $$
    SELECT a.*
    FROM replies a
    WHERE (a.slot, a.namespace, a.process_id, a.idempotency_key)
        = (p_slot, p_namespace, p_process_id, p_idempotency_key)
    ORDER BY a.task_id DESC
    LIMIT 1
$$;
