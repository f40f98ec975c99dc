-- Retention: deletes up to p_limit processes of a namespace that finished longer ago than p_age. Processes that
-- someone else has locked are left for the next round; so are followers of a job that has not ended.
-- Locks: processes, oldest first, SKIP LOCKED: no waiting, so no order is needed.
-- Returns: how many are gone.
CREATE FUNCTION delete_finished(
    p_now timestamptz, p_namespace text, p_age interval, p_limit integer
)
RETURNS integer
BY KEY
AS $$
DECLARE
    -- A variable: no index is searched for what the clock says row by row.
    v_before  timestamptz := coalesce(p_now, clock_timestamp()) - p_age;
    v_process record;
    v_count   integer := 0;
BEGIN
    FOR v_process IN
        SELECT p.slot, p.namespace, p.process_id
        FROM processes p
        WHERE p.namespace = p_namespace
            AND p.finished_at < v_before
            AND (p.leader_id IS NULL OR NOT EXISTS (
                SELECT
                FROM jobs j
                WHERE (j.slot, j.namespace, j.process_id)
                        = (p.leader_slot, p.leader_namespace, p.leader_id)
                    AND j.state = 'running'
            ))
        ORDER BY p.namespace, p.finished_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM delete_process(NULL, v_process.slot, v_process.namespace, v_process.process_id);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END;
$$;
