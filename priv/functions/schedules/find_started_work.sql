-- Finds the work that runs of a schedule have started and that has not ended, the oldest first.
-- Returns: one row per run.
CREATE FUNCTION find_started_work(
    p_slot        smallint,
    p_namespace   text,
    p_schedule_id text,
    p_limit       integer
)
RETURNS TABLE (
    instant timestamptz, process_slot smallint, process_id text, task_type text, task_id bigint
)
STABLE
BY KEY
AS $$
BEGIN
    RETURN QUERY
    SELECT f.instant, f.process_slot, f.process_id, f.task_type::text, f.task_id
    FROM schedule_runs f
    WHERE (f.slot, f.namespace, f.schedule_id) = (p_slot, p_namespace, p_schedule_id)
        AND f.state = 'running'
        AND read_run_state(f.process_slot, f.namespace, f.process_id, f.task_type, f.task_id)
            = 'running'
    ORDER BY f.slot, f.namespace, f.schedule_id, f.instant
    LIMIT p_limit;
END;
$$;
