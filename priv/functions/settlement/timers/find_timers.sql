-- Finds the timers of a process: those in its queue, those that wait for their constraints, and those that are held.
-- Locks: none.
-- Returns: them, in any order.
CREATE FUNCTION find_timers(p_slot smallint, p_namespace text, p_process_id text)
RETURNS TABLE (task_id bigint, task_type task_type, status task_status, due_at timestamptz)
LANGUAGE sql
STABLE
AS $$
    SELECT s.task_id, s.task_type, s.status, s.due_at
    FROM schedule s
    WHERE (s.slot, s.namespace, s.process_id) = (p_slot, p_namespace, p_process_id)
        AND s.task_type IN ('timeout', 'remove')
    UNION ALL
    SELECT g.task_id, g.task_type,
        CASE WHEN g.state = 'process' THEN 'blocked' ELSE 'waiting' END::task_status, g.run_at
    FROM gated g
    WHERE (g.slot, g.namespace, g.process_id) = (p_slot, p_namespace, p_process_id)
        AND g.task_type IN ('timeout', 'remove')
        AND g.state <> 'available'
    UNION ALL
    SELECT h.task_id, h.task_type, 'blocked', h.due_at
    FROM held h
    WHERE (h.slot, h.namespace, h.process_id) = (p_slot, p_namespace, p_process_id)
        AND h.task_type IN ('timeout', 'remove')
$$;
