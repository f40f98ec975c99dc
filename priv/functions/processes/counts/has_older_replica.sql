-- Finds replicas of earlier releases.
-- Returns: whether a replica works, or did within the last minute, whose release does not count processes: its functions do
-- not include count_changes. A minute, since its last statements may end later than its last heartbeat.
CREATE FUNCTION has_older_replica(p_now timestamptz)
RETURNS boolean
AS $$
BEGIN
    RETURN EXISTS (
        SELECT
        FROM replicas r
        WHERE r.heartbeat_at > p_now - interval '1 minute'
            AND NOT EXISTS (
                SELECT
                FROM pg_proc f
                JOIN pg_namespace s ON s.oid = f.pronamespace
                WHERE s.nspname = r.functions AND f.proname = 'count_changes'
            )
    );
END;
$$;
