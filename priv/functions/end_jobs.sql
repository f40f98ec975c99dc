-- Ends jobs that run: their nodes that have not been started are cancelled; those that have are left to
-- tend_job, and to the settlement of whatever step they are in.
-- Locks: none of its own; the caller has locked the leaders.
-- Returns: the jobs that tend_job has to look at.
CREATE FUNCTION end_jobs(
    p_now        timestamptz,
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_state      job_state[],
    p_detail     text[]
)
RETURNS TABLE (slot smallint, namespace text, process_id text)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_memoize = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    UPDATE job_nodes n
    SET state = 'cancelled', ended_at = p_now, revision = l.revision
    FROM (
        SELECT n.node_row, j.revision + 1 AS revision
        FROM unnest(p_slot, p_namespace, p_process_id) AS l (slot, namespace, process_id)
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
            cancelled = j.cancelled + j.waiting + j.ready,
            waiting = 0,
            ready = 0,
            revision = j.revision + 1,
            updated_at = p_now,
            ended_at = p_now,
            untended_at = CASE WHEN j.running > 0 THEN p_now END
        FROM (
            SELECT j.job_row, l.state, l.detail
            FROM unnest(p_slot, p_namespace, p_process_id, p_state, p_detail)
                AS l (slot, namespace, process_id, state, detail)
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
