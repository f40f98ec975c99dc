-- Finds the last repair of a process in error that has failed since it broke, among the last 100 tasks. A retry that broke it
-- again has a newer lease than the repairs before it.
-- Returns: a row or none.
CREATE FUNCTION find_failed_repair(
    p_slot smallint, p_namespace text, p_process_id text, p_broken_by bigint, p_broken_at timestamptz
)
RETURNS TABLE (task_id bigint, failed_at timestamptz, code integer, reason text, message text)
STABLE
BY INDEX
AS $$
BEGIN
    RETURN QUERY
    SELECT t.task_id, t.finished_at, t.error_code, t.error_reason, coalesce(t.error_message, '')
    FROM (
        SELECT t.*
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id) = (p_slot, p_namespace, p_process_id)
        ORDER BY t.slot DESC, t.namespace DESC, t.process_id DESC, t.task_id DESC
        LIMIT 100
    ) t
    WHERE t.task_type = 'repair' AND t.status = 'error'
        AND coalesce(
            t.token > (
                SELECT b.token
                FROM tasks b
                WHERE (b.slot, b.namespace, b.process_id, b.task_id)
                    = (p_slot, p_namespace, p_process_id, p_broken_by)),
            t.finished_at >= p_broken_at)
    ORDER BY t.task_id DESC
    LIMIT 1;
END;
$$;
