-- Finds out whether a leader lacks a join task: all nodes of its running job have ended, and it neither had nor has
-- one. A leader that had one, and has neither finished nor broken, decides by itself when the job ends.
-- Returns: whether it lacks one.
CREATE FUNCTION lacks_join(p_job jobs)
RETURNS boolean
STABLE
AS $$
BEGIN
    RETURN p_job.state = 'running'
        AND p_job.waiting + p_job.ready + p_job.running = 0
        AND (p_job.join_task_id IS NULL OR EXISTS (
            SELECT
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (p_job.slot, p_job.namespace, p_job.process_id, p_job.join_task_id)
                AND t.status = 'cancelled'
        ))
        AND EXISTS (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id)
                    = (p_job.slot, p_job.namespace, p_job.process_id)
                AND p.status = 'running'
        );
END;
$$;
