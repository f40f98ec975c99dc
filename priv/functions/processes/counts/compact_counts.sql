-- Merges the rows of process_counts into one per namespace and status if there are more than p_rows_max, and finds out
-- whether their sums are exact: unless a replica of an older release has run since the last scan began.
-- Locks: process_count_state, SKIP LOCKED, since its holder is doing this; then rows of process_counts, which no other
-- function locks.
-- Returns: whether the sums are exact; whether a scan is due (recount_processes). Null: another replica is doing this.
CREATE FUNCTION compact_counts(
    p_now      timestamptz,
    p_rows_max integer,
    OUT is_exact boolean,
    OUT scan_due boolean
)
AS $$
DECLARE
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_state process_count_state%ROWTYPE;
BEGIN
    SELECT * INTO v_state FROM process_count_state FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    is_exact := v_state.is_exact AND v_state.replica_id = last_replica_id() AND NOT has_older_replica(v_now);
    scan_due := v_state.scan_due_at <= v_now OR (v_state.is_exact AND NOT is_exact);
    IF NOT is_exact AND scan_due THEN
        -- The scan that follows covers all replicas that have started so far.
        UPDATE process_count_state s
        SET is_exact = false, replica_id = last_replica_id(), scan_due_at = v_now;
    END IF;

    IF (SELECT count(*) - 4 * count(DISTINCT c.namespace) FROM process_counts c) > p_rows_max THEN
        WITH merged AS (
            DELETE FROM process_counts c
            RETURNING c.*
        )
        INSERT INTO process_counts (namespace, status_after, process_count)
        SELECT s.namespace, s.status, sum(s.process_count)
        FROM (
            SELECT m.namespace, m.status_after AS status, m.process_count
            FROM merged m
            UNION ALL
            SELECT m.namespace, m.status_before, -m.process_count
            FROM merged m
        ) s
        WHERE s.status IS NOT NULL
        GROUP BY s.namespace, s.status
        HAVING sum(s.process_count) <> 0;
    END IF;
END;
$$;
