-- Takes a task out of the line of its process: it waits for its constraints, or is cancelled. Who is
-- next then is due, if the process has no step in hand; and where nobody is, the timer that stood aside
-- wakes.
-- Locks: none of its own; the caller has locked the process.
-- Returns: nothing.
CREATE FUNCTION leave_line(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text, p_task_id bigint
)
RETURNS void
AS $$
BEGIN
    DELETE FROM schedule s
    WHERE (s.slot, s.namespace, s.process_id, s.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    PERFORM line_up(p_now, p_slot, p_namespace, p_process_id);
END;
$$;
