-- Describes the first task in the queue of a process to the replica, if it is due by time.
-- Locks: none; the caller has locked the process.
-- Returns: it, as settle_gates returns a due task; null if there is none.
CREATE FUNCTION describe_first_task(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text
)
RETURNS jsonb
STABLE
AS $$
DECLARE
    v_first schedule%ROWTYPE := find_first_task(p_slot, p_namespace, p_process_id);
BEGIN
    RETURN CASE WHEN v_first.due_at IS NOT NULL AND v_first.status = 'waiting' THEN
        jsonb_build_array(jsonb_build_array(
            p_namespace, p_process_id, v_first.task_id, NULL, NULL, NULL, NULL,
            nullif(greatest(extract(epoch FROM v_first.due_at - p_now), 0), 0)))
    END;
END;
$$;
