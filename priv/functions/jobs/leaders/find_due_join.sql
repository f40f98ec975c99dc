-- Finds the due join of a leader, so that the replica that caused it can claim it at once.
-- Locks: none; the caller has locked the leader.
-- Returns: it, as settle_gates returns a due task; null: no join is due.
CREATE FUNCTION find_due_join(p_slot smallint, p_namespace text, p_process_id text)
RETURNS jsonb
STABLE
BY INDEX
AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_array(jsonb_build_array(j.namespace, j.process_id, j.join_task_id))
        FROM jobs j
        JOIN schedule s
            ON (s.slot, s.namespace, s.process_id, s.task_id)
                = (j.slot, j.namespace, j.process_id, j.join_task_id)
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
            AND s.due_at IS NOT NULL
    );
END;
$$;
