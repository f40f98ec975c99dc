-- Ends jobs that run: their nodes that have not been started are cancelled, or fail, where p_fails says so;
-- those that have are left to maintain_job, and to the settlement of whatever step they are in.
-- Locks: none of its own; the caller has locked the leaders.
-- Returns: the jobs that maintain_job has to look at.
CREATE FUNCTION end_jobs(
    p_now        timestamptz,
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_state      job_state[],
    p_detail     text[],
    p_fails      boolean[] DEFAULT NULL
)
RETURNS TABLE (slot smallint, namespace text, process_id text)
BY INDEX
SET enable_memoize = off
AS $$
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
        SELECT n.node_row, coalesce(l.fails, false) AS fails, describe_job_end(l.detail) AS why,
            j.revision + 1 AS revision
        FROM unnest(p_slot, p_namespace, p_process_id, p_detail, p_fails)
            AS l (slot, namespace, process_id, detail, fails)
        CROSS JOIN LATERAL (
            SELECT j.revision
            FROM jobs j
            WHERE (j.slot, j.namespace, j.process_id) = (l.slot, l.namespace, l.process_id)
                AND j.state = 'running' AND j.waiting + j.ready > 0
            OFFSET 0
        ) j
        CROSS JOIN LATERAL (
            SELECT n.ctid AS node_row
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id) = (l.slot, l.namespace, l.process_id)
                AND n.state IN ('waiting', 'ready')
            OFFSET 0
        ) n
        OFFSET 0
    ) l
    WHERE n.ctid = l.node_row;

    RETURN QUERY
    WITH ended AS (
        UPDATE jobs j
        SET state = l.state,
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
            SELECT j.job_row, l.state, l.detail, coalesce(l.fails, false) AS fails
            FROM unnest(p_slot, p_namespace, p_process_id, p_state, p_detail, p_fails)
                AS l (slot, namespace, process_id, state, detail, fails)
            CROSS JOIN LATERAL (
                SELECT j.ctid AS job_row
                FROM jobs j
                WHERE (j.slot, j.namespace, j.process_id) = (l.slot, l.namespace, l.process_id)
                    AND j.state = 'running'
                OFFSET 0
            ) j
            OFFSET 0
        ) l
        WHERE j.ctid = l.job_row
        RETURNING j.slot, j.namespace, j.process_id, j.running
    )
    SELECT e.slot, e.namespace, e.process_id
    FROM ended e
    WHERE e.running > 0;
END;
$$;
