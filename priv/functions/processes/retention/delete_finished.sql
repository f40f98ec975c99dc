-- Retention: deletes processes of a namespace that finished longer ago than p_age, the oldest first, from p_after on:
-- what is before that has been looked at in this round; null: from the beginning. It deletes up to p_limit, and stops sooner once they have more
-- than p_events_max events. Processes that someone else has locked are left for the next round; so are followers of a
-- job that has not ended.
-- Locks: processes, oldest first, SKIP LOCKED: no waiting, so no order is needed.
-- Returns: how many are gone, whether more are left, when the last one finished, and how many seconds ago it should
-- have been deleted.
CREATE FUNCTION delete_finished(
    p_now        timestamptz,
    p_namespace  text,
    p_age        double precision,
    p_limit      integer,
    p_events_max integer,
    p_after      timestamptz
)
RETURNS TABLE (
    deleted_count integer, more boolean, reached_at timestamptz, overdue double precision
)
BY ITEM
AS $$
DECLARE
    -- A variable: no index is searched for what the clock says row by row.
    v_before  timestamptz := coalesce(p_now, clock_timestamp()) - make_interval(secs => p_age);
    v_after   timestamptz := coalesce(p_after, '-infinity');
    v_process record;
    v_keys    process_key[] := '{}';
    v_events  bigint := 0;
BEGIN
    FOR v_process IN
        SELECT p.slot, p.namespace, p.process_id, p.last_event_id, p.finished_at
        FROM processes p
        WHERE p.namespace = p_namespace
            AND p.finished_at < v_before
            AND p.finished_at >= v_after
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
        v_keys := v_keys
            || (v_process.slot, v_process.namespace, v_process.process_id)::process_key;
        v_events := v_events + v_process.last_event_id;
        reached_at := v_process.finished_at;
        EXIT WHEN v_events > p_events_max;
    END LOOP;
    deleted_count := cardinality(v_keys);
    more := deleted_count = p_limit OR v_events > p_events_max;
    overdue := extract(epoch FROM v_before - reached_at);
    IF deleted_count > 0 THEN
        PERFORM delete_processes(NULL, v_keys);
    END IF;
    RETURN NEXT;
END;
$$;
