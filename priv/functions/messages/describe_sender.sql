-- Describes the sender of a message, for `tasks.sender`.
-- Returns: [namespace, process_id, task_id]; null: it was not sent, but reports a message that was refused.
CREATE FUNCTION describe_sender(p_namespace text, p_process_id text, p_task_id bigint)
RETURNS json
LANGUAGE sql
STABLE
AS $$
    SELECT CASE WHEN p_task_id > 0 THEN json_build_array(p_namespace, p_process_id, p_task_id) END
$$;
