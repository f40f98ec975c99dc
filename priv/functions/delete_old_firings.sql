-- Deletes the record of firings of one slot: of each schedule what is not among the last p_kept, or older
-- than p_age seconds. What is queued or at work stays, after a look at whether it still is. The schedule
-- remembers the span of those that had started something: nothing in it is backfilled.
-- Locks: schedules, SKIP LOCKED, one after the other.
-- Returns: how many were deleted.
CREATE FUNCTION delete_old_firings(
    p_now  timestamptz,
    p_slot smallint,
    p_kept integer,
    p_age  double precision
)
RETURNS bigint
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_schedule record;
    v_gone     record;
    v_count    bigint := 0;
BEGIN
    FOR v_schedule IN
        SELECT s.slot, s.namespace, s.schedule_id
        FROM schedules s
        WHERE s.slot = p_slot
        ORDER BY s.slot, s.namespace, s.schedule_id
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM settle_firings(v_now, ARRAY[v_schedule.slot], ARRAY[v_schedule.namespace],
            ARRAY[v_schedule.schedule_id], 1000);
        WITH old AS MATERIALIZED (
            SELECT f.instant, row_number() OVER (ORDER BY f.fired_at DESC, f.instant DESC) AS place,
                f.fired_at, f.state
            FROM firings f
            WHERE (f.slot, f.namespace, f.schedule_id)
                = (v_schedule.slot, v_schedule.namespace, v_schedule.schedule_id)
        ),
        gone AS (
            DELETE FROM firings f
            USING old o
            WHERE (f.slot, f.namespace, f.schedule_id, f.instant)
                = (v_schedule.slot, v_schedule.namespace, v_schedule.schedule_id, o.instant)
                AND o.state NOT IN ('queued', 'running')
                AND (o.place > p_kept OR o.fired_at < v_now - make_interval(secs => p_age))
            RETURNING f.instant, f.task_id
        )
        SELECT count(*) AS count, min(g.instant) FILTER (WHERE g.task_id IS NOT NULL) AS first,
            max(g.instant) FILTER (WHERE g.task_id IS NOT NULL) AS last
        INTO v_gone
        FROM gone g;
        v_count := v_count + v_gone.count;
        IF v_gone.first IS NOT NULL THEN
            UPDATE schedules s
            SET forgotten_from = least(s.forgotten_from, v_gone.first),
                forgotten_until = greatest(s.forgotten_until, v_gone.last)
            WHERE (s.slot, s.namespace, s.schedule_id)
                = (v_schedule.slot, v_schedule.namespace, v_schedule.schedule_id);
        END IF;
    END LOOP;
    RETURN v_count;
END;
$$;
