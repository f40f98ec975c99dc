-- Counts all processes and corrects process_counts by the differences. One statement reads both, so it sees one
-- snapshot: a transaction that commits later counts its own changes. Reads the whole table of processes.
-- p_interval: until the next scan, if the counts are exact from now on. Otherwise the next one follows after a minute,
-- or fifty times as long as this one took.
-- Locks: an advisory lock, against a second scan at the same time; process_count_state in the end.
-- Returns: the number of counts that were corrected; null: another replica is scanning.
CREATE FUNCTION recount_processes(p_now timestamptz, p_interval interval)
RETURNS integer
SET jit = off
AS $$
DECLARE
    v_began_at   timestamptz := clock_timestamp();
    v_now        timestamptz := coalesce(p_now, v_began_at);
    v_is_exact   boolean;
    v_corrected  integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7306915) THEN
        RETURN NULL;
    END IF;
    v_is_exact := NOT has_older_replica(v_now)
        AND EXISTS (SELECT FROM process_count_state s WHERE s.replica_id = last_replica_id());
    INSERT INTO process_counts (namespace, status_after, process_count)
    SELECT s.namespace, s.status, sum(s.process_count)
    FROM (
        SELECT p.namespace, p.status, count(*) AS process_count
        FROM processes p
        GROUP BY p.namespace, p.status
        UNION ALL
        SELECT c.namespace, c.status_after, -c.process_count
        FROM process_counts c
        UNION ALL
        SELECT c.namespace, c.status_before, c.process_count
        FROM process_counts c
    ) s
    WHERE s.status IS NOT NULL
    GROUP BY s.namespace, s.status
    HAVING sum(s.process_count) <> 0;
    GET DIAGNOSTICS v_corrected = ROW_COUNT;
    UPDATE process_count_state s
    SET is_exact = v_is_exact,
        scanned_at = v_now,
        scan_due_at = v_now + CASE WHEN v_is_exact THEN p_interval
            ELSE greatest(interval '1 minute', 50 * (clock_timestamp() - v_began_at)) END;
    RETURN v_corrected;
END;
$$;
