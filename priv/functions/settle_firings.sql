-- Notes of firings whose runs have ended how they have, up to p_limit of each schedule, the oldest first.
-- The caller holds the locks of the schedules.
-- Locks: nothing more; a process that is read without its lock, and at work, may just have ended.
-- Returns: nothing.
CREATE FUNCTION settle_firings(
    p_now         timestamptz,
    p_slot        smallint[],
    p_namespace   text[],
    p_schedule_id text[],
    p_limit       integer
)
RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
BEGIN
    UPDATE firings f
    SET state = r.state, ended_at = p_now
    FROM (
        SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
            unnest(p_schedule_id) AS schedule_id
    ) i
    CROSS JOIN LATERAL (
        SELECT w.instant,
            run_state(w.process_slot, w.namespace, w.process_id, w.task_type, w.task_id) AS state
        FROM firings w
        WHERE (w.slot, w.namespace, w.schedule_id) = (i.slot, i.namespace, i.schedule_id)
            AND w.state = 'running'
        ORDER BY w.slot, w.namespace, w.schedule_id, w.instant
        LIMIT p_limit
    ) r
    WHERE (f.slot, f.namespace, f.schedule_id, f.instant)
        = (i.slot, i.namespace, i.schedule_id, r.instant)
        AND r.state <> 'running';
END;
$$;
