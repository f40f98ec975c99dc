-- Records how runs ended whose work has ended, up to p_limit of each schedule, the oldest first. The caller holds
-- the locks of the schedules. read_run_state is called once for each run: next to the update the planner would call
-- it for each pair of runs.
-- Locks: nothing more; a process that is read without its lock, and at work, may just have ended.
CREATE FUNCTION end_runs(
    p_now         timestamptz,
    p_slot        smallint[],
    p_namespace   text[],
    p_schedule_id text[],
    p_limit       integer
)
RETURNS void
BY INDEX
SET lock_timeout = '2s'
AS $$
BEGIN
    WITH looked AS MATERIALIZED (
        SELECT i.slot, r.row_id,
            read_run_state(r.process_slot, i.namespace, r.process_id, r.task_type, r.task_id) AS state
        FROM (
            SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
                unnest(p_schedule_id) AS schedule_id
        ) i
        CROSS JOIN LATERAL (
            SELECT w.ctid AS row_id, w.process_slot, w.process_id, w.task_type, w.task_id
            FROM schedule_runs w
            WHERE (w.slot, w.namespace, w.schedule_id) = (i.slot, i.namespace, i.schedule_id)
                AND w.state = 'running'
            ORDER BY w.slot, w.namespace, w.schedule_id, w.instant
            LIMIT p_limit
        ) r
    ),
    ended AS MATERIALIZED (
        SELECT l.*
        FROM looked l
        WHERE l.state <> 'running'
    )
    UPDATE schedule_runs f
    SET state = e.state, ended_at = p_now
    FROM ended e
    WHERE f.ctid = e.row_id AND f.slot BETWEEN e.slot AND e.slot;
END;
$$;
