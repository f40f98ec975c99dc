-- Ends running jobs. Nodes that have not started are cancelled, or fail if p_fails; nodes that have started are
-- left to maintain_job and to the settlements of their running steps.
-- Locks: none of its own; the caller has locked the leaders.
-- Returns: [[slot, namespace, process_id], ...] of the jobs that maintain_job must check; null: none.
CREATE FUNCTION end_jobs(
    p_now    timestamptz,
    p_leader process_key[],
    p_state  job_state,
    p_detail text[],
    p_fails  boolean[] DEFAULT NULL
)
RETURNS jsonb
BY ITEM
AS $$
DECLARE
    v_upkeep jsonb;
BEGIN
    UPDATE job_nodes n
    SET state = CASE WHEN l.fails THEN 'failed' ELSE 'cancelled' END::node_state,
        error_code = CASE WHEN l.fails THEN 10 END,
        error_reason = CASE WHEN l.fails THEN 'JOB_FAILED' END,
        error_message = CASE WHEN l.fails THEN l.why END,
        ended_at = p_now,
        updated_at = p_now,
        revision = l.revision
    FROM (
        SELECT l.slot, n.node_row, coalesce(l.fails, false) AS fails, describe_job_end(l.detail) AS why,
            j.revision + 1 AS revision
        FROM unnest(p_leader, p_detail, p_fails)
            AS l (slot, namespace, process_id, detail, fails)
        JOIN LATERAL find_job(l.slot, l.namespace, l.process_id) j
            ON j.state = 'running' AND j.waiting + j.ready > 0
        CROSS JOIN LATERAL (
            SELECT n.ctid AS node_row
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id) = (l.slot, l.namespace, l.process_id)
                AND n.state IN ('waiting', 'ready')
            OFFSET 0
        ) n
        OFFSET 0
    ) l
    WHERE n.ctid = l.node_row AND n.slot BETWEEN l.slot AND l.slot;

    WITH ended AS (
        UPDATE jobs j
        SET state = p_state,
            detail = l.detail,
            failed = j.failed + CASE WHEN l.fails THEN j.waiting + j.ready ELSE 0 END,
            cancelled = j.cancelled + CASE WHEN l.fails THEN 0 ELSE j.waiting + j.ready END,
            fails_nodes = l.fails,
            waiting = 0,
            ready = 0,
            revision = j.revision + 1,
            updated_at = p_now,
            ended_at = p_now,
            upkeep_due_at = CASE WHEN j.running > 0 THEN p_now END
        FROM (
            SELECT l.slot, j.job_row, l.detail, coalesce(l.fails, false) AS fails
            FROM unnest(p_leader, p_detail, p_fails) AS l (slot, namespace, process_id, detail, fails)
            JOIN LATERAL find_job(l.slot, l.namespace, l.process_id) j
                ON j.state = 'running'
            OFFSET 0
        ) l
        WHERE j.ctid = l.job_row AND j.slot BETWEEN l.slot AND l.slot
        RETURNING j.slot, j.namespace, j.process_id, j.running
    )
    SELECT jsonb_agg(jsonb_build_array(e.slot, e.namespace, e.process_id))
    INTO v_upkeep
    FROM ended e
    WHERE e.running > 0;
    RETURN v_upkeep;
END;
$$;
