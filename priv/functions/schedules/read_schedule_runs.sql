-- Reads the last runs of a schedule, the latest first, with their present states; from
-- p_instant back, if that is given.
-- Returns: one row per run.
CREATE FUNCTION read_schedule_runs(
    p_slot        smallint,
    p_namespace   text,
    p_schedule_id text,
    p_instant     timestamptz,
    p_limit       integer
)
RETURNS TABLE (
    instant timestamptz, cause text, state text, due_at timestamptz, recorded_at timestamptz,
    started_at timestamptz, ended_at timestamptz, process_id text, task_id bigint,
    error_code integer, error_reason text, error_message text, missed_count bigint,
    missed_until timestamptz
)
STABLE
BY KEY
AS $$
BEGIN
    RETURN QUERY
    SELECT f.instant, f.cause::text,
        CASE f.state
            WHEN 'running' THEN
                read_run_state(f.process_slot, f.namespace, f.process_id, f.task_type, f.task_id)
            ELSE f.state
        END::text,
        f.due_at, f.recorded_at, f.started_at, f.ended_at, f.process_id, f.task_id, f.error_code,
        f.error_reason, f.error_message, f.missed_count, f.missed_until
    FROM (
        SELECT w.*
        FROM schedule_runs w
        WHERE (w.slot, w.namespace, w.schedule_id) = (p_slot, p_namespace, p_schedule_id)
            AND w.instant <= coalesce(p_instant, 'infinity')
        ORDER BY w.slot DESC, w.namespace DESC, w.schedule_id DESC, w.instant DESC
        LIMIT p_limit
    ) f;
END;
$$;
