-- Makes the first waiting task of a process due (see find_first_task), and no other. None is due while the process
-- runs a step. Of the others only the one that was first before can be due, which is the next one; a timer is
-- blocked meanwhile and keeps its instant.
-- Locks: none of its own; the caller has locked the process.
CREATE FUNCTION enqueue_first_task(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text
)
RETURNS void
AS $$
DECLARE
    v_next schedule%ROWTYPE;
BEGIN
    IF NOT EXISTS (
        SELECT
        FROM running r
        WHERE (r.slot, r.namespace, r.process_id) = (p_slot, p_namespace, p_process_id)
    ) THEN
        v_next := find_first_task(p_slot, p_namespace, p_process_id);
    END IF;
    UPDATE schedule s
    SET due_at = CASE WHEN n.task_id = v_next.task_id THEN coalesce(s.due_at, p_now) END
    FROM (
        SELECT f.task_id
        FROM schedule f
        WHERE (f.slot, f.namespace, f.process_id) = (p_slot, p_namespace, p_process_id)
            AND f.task_type NOT IN ('timeout', 'remove')
        ORDER BY f.slot, f.namespace, f.process_id, f.task_id
        LIMIT 2
    ) n
    WHERE (s.slot, s.namespace, s.process_id, s.task_id)
            = (p_slot, p_namespace, p_process_id, n.task_id)
        AND (s.due_at IS NULL) = (n.task_id IS NOT DISTINCT FROM v_next.task_id);
    UPDATE schedule s
    SET status = CASE WHEN s.task_id = v_next.task_id THEN 'waiting' ELSE 'blocked' END::task_status
    WHERE (s.slot, s.namespace, s.process_id) = (p_slot, p_namespace, p_process_id)
        AND s.task_type IN ('timeout', 'remove')
        AND (s.status = 'waiting') = (s.task_id IS DISTINCT FROM v_next.task_id);
END;
$$;
