-- Finds out how a process has ended. One in error has ended until something brings it back: a repair, or the task that
-- broke it, which waits or runs.
-- Returns: a row or none. The verdict: finished, terminated, failed; null while it has not ended. code and reason are
-- those of the step that broke it.
CREATE FUNCTION find_end(p_slot smallint, p_namespace text, p_process_id text)
RETURNS TABLE (
    verdict text, init_task_id bigint, created_at timestamptz, result bytea, detail text,
    broken_by bigint, error_code integer, error_reason text
)
LANGUAGE sql
STABLE
AS $$
    SELECT CASE
            WHEN p.status = 'finished' AND p.end_reason IS NULL THEN 'finished'
            WHEN p.status = 'finished' THEN 'terminated'
            WHEN p.status = 'error' AND b.status IS DISTINCT FROM 'waiting'
                AND NOT EXISTS (
                    SELECT
                    FROM running r
                    WHERE (r.slot, r.namespace, r.process_id)
                        = (p_slot, p_namespace, p_process_id))
                AND NOT EXISTS (
                    SELECT
                    FROM schedule s
                    WHERE (s.slot, s.namespace, s.process_id)
                        = (p_slot, p_namespace, p_process_id))
            THEN 'failed'
        END,
        p.init_task_id, p.created_at, p.result, coalesce(p.detail, p.end_reason), p.corrupted_by,
        b.error_code, b.error_reason
    FROM processes p
    LEFT JOIN LATERAL (
        SELECT t.status, t.error_code, t.error_reason
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p_slot, p_namespace, p_process_id, p.corrupted_by)
        OFFSET 0
    ) b ON true
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
    OFFSET 0
$$;
