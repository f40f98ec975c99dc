-- Finds broken processes without a group of failures: what a release before the groups has broken.
-- Locks: none.
-- Returns: at most p_limit of a namespace, with the error of the task that broke it.
CREATE FUNCTION find_ungrouped(p_namespace text, p_limit integer)
RETURNS TABLE (
    slot smallint, process_id text, broken_at timestamptz, reason text, message text, task_type task_type
)
STABLE
BY INDEX
AS $$
BEGIN
    RETURN QUERY
    SELECT p.slot, p.process_id, p.status_changed_at, coalesce(t.error_reason, ''), p.detail, t.task_type
    FROM (
        SELECT p.slot, p.namespace, p.process_id, p.status_changed_at, p.detail, p.corrupted_by
        FROM processes p
        WHERE p.namespace = p_namespace COLLATE "POSIX" AND p.failure_id COLLATE "POSIX" IS NULL
            AND p.detail IS NOT NULL
        LIMIT p_limit
    ) p
    LEFT JOIN LATERAL (
        SELECT t.error_reason, t.task_type
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p.slot, p.namespace, p.process_id, p.corrupted_by)
        OFFSET 0
    ) t ON true;
END;
$$;
