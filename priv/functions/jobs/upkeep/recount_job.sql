-- Counts the nodes of a job anew, after many of them have moved.
-- Locks: none of its own; the caller has locked the leader.
-- Returns: how many are unfinished.
CREATE FUNCTION recount_job(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text
)
RETURNS integer
BY INDEX
AS $$
DECLARE
    v_unfinished integer;
BEGIN
    UPDATE jobs j
    SET waiting = c.waiting, ready = c.ready, running = c.running, beginning = c.beginning,
        failed = c.failed, skipped = c.skipped, cancelled = c.cancelled,
        revision = j.revision + 1, updated_at = p_now
    FROM (
        SELECT count(*) FILTER (WHERE n.state = 'waiting') AS waiting,
            count(*) FILTER (WHERE n.state = 'ready') AS ready,
            count(*) FILTER (WHERE n.state = 'running') AS running,
            count(*) FILTER (WHERE n.state = 'running' AND NOT n.begun) AS beginning,
            count(*) FILTER (WHERE n.state = 'failed') AS failed,
            count(*) FILTER (WHERE n.state = 'skipped') AS skipped,
            count(*) FILTER (WHERE n.state = 'cancelled') AS cancelled
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
    ) c
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
    RETURNING j.waiting + j.ready + j.running INTO v_unfinished;
    RETURN v_unfinished;
END;
$$;
