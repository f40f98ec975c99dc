-- Checks whether a job has stalled: its join is missing, a node has not ended although its follower has, or ready
-- nodes have not started although there is room.
-- Returns: whether it has stalled.
CREATE FUNCTION is_stuck(p_slot smallint, p_namespace text, p_process_id text)
RETURNS boolean
STABLE
AS $$
DECLARE
    v_job jobs%ROWTYPE;
BEGIN
    SELECT j.*
    INTO v_job
    FROM jobs j
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    RETURN lacks_join(v_job)
        OR (v_job.ready > 0 AND v_job.beginning < 512 AND v_job.upkeep_due_at IS NULL)
        OR (v_job.running > 0 AND EXISTS (
            SELECT FROM find_stuck_nodes(p_slot, p_namespace, p_process_id)
        ));
END;
$$;
