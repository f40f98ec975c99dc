-- Keeps the counts of jobs after nodes have moved from one state to another; where nothing of a running job is left
-- to do, tells its leader by a join.
-- Locks: none of its own; the caller has locked the leaders.
CREATE FUNCTION count_nodes(p_now timestamptz, p_replica_id bigint, p_moved moved_node[])
RETURNS void
BY ITEM
AS $$
DECLARE
    v_job record;
BEGIN
    FOR v_job IN
        UPDATE jobs j
        SET waiting = j.waiting - c.from_waiting,
            ready = j.ready + c.to_ready - c.from_ready,
            running = j.running - c.from_running,
            beginning = j.beginning - c.from_beginning,
            failed = j.failed + c.to_failed,
            skipped = j.skipped + c.to_skipped,
            cancelled = j.cancelled + c.to_cancelled,
            revision = j.revision + 1,
            updated_at = p_now,
            upkeep_due_at = CASE WHEN c.gates THEN coalesce(j.upkeep_due_at, p_now)
                ELSE j.upkeep_due_at END
        FROM (
            SELECT j.job_row, c.*
            FROM (
                SELECT c.slot, c.namespace, c.process_id,
                    count(*) FILTER (WHERE c.was = 'waiting') AS from_waiting,
                    count(*) FILTER (WHERE c.was = 'ready') AS from_ready,
                    count(*) FILTER (WHERE c.was = 'running') AS from_running,
                    count(*) FILTER (WHERE c.was = 'running' AND NOT c.begun) AS from_beginning,
                    count(*) FILTER (WHERE c.state = 'ready') AS to_ready,
                    -- What has constraints, maintain_job starts.
                    bool_or(CASE WHEN c.state = 'ready' THEN (
                        SELECT n.gated
                        FROM job_nodes n
                        WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                            = (c.slot, c.namespace, c.process_id, c.ordinal)
                    ) END) AS gates,
                    count(*) FILTER (WHERE c.state = 'failed') AS to_failed,
                    count(*) FILTER (WHERE c.state = 'skipped') AS to_skipped,
                    count(*) FILTER (WHERE c.state = 'cancelled') AS to_cancelled
                FROM unnest(p_moved) AS c
                GROUP BY c.slot, c.namespace, c.process_id
            ) c
            CROSS JOIN LATERAL find_job(c.slot, c.namespace, c.process_id) j
            OFFSET 0
        ) c
        WHERE j.ctid = c.job_row AND j.slot BETWEEN c.slot AND c.slot
        RETURNING j.slot, j.namespace, j.process_id, j.state,
            j.waiting + j.ready + j.running AS unfinished_count
    LOOP
        IF v_job.unfinished_count = 0 AND v_job.state = 'running' THEN
            PERFORM add_join(p_now, p_replica_id, v_job.slot, v_job.namespace, v_job.process_id);
        END IF;
    END LOOP;
END;
$$;
