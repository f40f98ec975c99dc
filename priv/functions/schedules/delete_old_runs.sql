-- Deletes runs of one slot: of each schedule those that are not among the last p_kept, or older than p_age seconds.
-- What is still queued or at work stays, and so does all of a paused namespace. The schedule remembers the span of
-- those that had started something: nothing in it is backfilled. A call looks at p_limit runs, or at as many schedules
-- without any, and returns where the next one continues, with the latest run that is not kept of that schedule, so
-- that it is looked up once.
-- Locks: schedules, SKIP LOCKED, in key order.
-- Returns: how many were deleted, and where to go on, or that the slot is done.
CREATE FUNCTION delete_old_runs(
    p_now          timestamptz,
    p_slot         smallint,
    p_kept         integer,
    p_age          double precision,
    p_limit        integer,
    p_namespace    text,
    p_schedule_id  text,
    p_instant      timestamptz,  -- null: behind the whole schedule
    p_kept_at      timestamptz,  -- of that schedule: the latest run that is not kept; null: none
    p_kept_instant timestamptz
)
RETURNS TABLE (
    deleted_count bigint, is_done boolean, namespace text, schedule_id text, instant timestamptz,
    kept_at timestamptz, kept_instant timestamptz
)
BY INDEX
AS $$
#variable_conflict use_variable
DECLARE
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_schedule record;
    v_seen     record;
    v_room     integer := p_limit;
BEGIN
    deleted_count := 0;
    is_done := false;
    namespace := p_namespace;
    schedule_id := p_schedule_id;
    instant := p_instant;
    kept_at := p_kept_at;
    kept_instant := p_kept_instant;
    LOOP
        SELECT s.namespace, s.schedule_id
        INTO v_schedule
        FROM schedules s
        WHERE s.slot = p_slot
            AND (s.namespace, s.schedule_id) >= (namespace, schedule_id)
            AND (
                instant IS NOT NULL OR (s.namespace, s.schedule_id) <> (namespace, schedule_id)
            )
            AND NOT EXISTS (
                SELECT
                FROM namespaces n
                WHERE n.name = s.namespace AND n.paused_at IS NOT NULL
            )
        ORDER BY s.slot, s.namespace, s.schedule_id
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            is_done := true;
            EXIT;
        END IF;
        IF instant IS NULL
            OR (namespace, schedule_id) <> (v_schedule.namespace, v_schedule.schedule_id)
        THEN
            namespace := v_schedule.namespace;
            schedule_id := v_schedule.schedule_id;
            instant := '-infinity';
            SELECT f.recorded_at, f.instant
            INTO kept_at, kept_instant
            FROM schedule_runs f
            WHERE (f.slot, f.namespace, f.schedule_id) = (p_slot, namespace, schedule_id)
            ORDER BY f.recorded_at DESC, f.instant DESC
            OFFSET p_kept
            LIMIT 1;
        END IF;
        WITH looked AS MATERIALIZED (
            SELECT w.row_id, w.instant, w.state AS was,
                CASE w.state
                    WHEN 'running' THEN
                        read_run_state(
                            w.process_slot, w.namespace, w.process_id, w.task_type, w.task_id)
                    ELSE w.state
                END AS state,
                w.recorded_at < v_now - make_interval(secs => p_age)
                    OR coalesce((w.recorded_at, w.instant) <= (kept_at, kept_instant), false) AS is_old
            FROM (
                SELECT f.ctid AS row_id, f.*
                FROM schedule_runs f
                WHERE (f.slot, f.namespace, f.schedule_id) = (p_slot, namespace, schedule_id)
                    AND f.instant > instant
                ORDER BY f.slot, f.namespace, f.schedule_id, f.instant
                LIMIT v_room
            ) w
        ),
        old AS MATERIALIZED (
            SELECT l.row_id
            FROM looked l
            WHERE l.is_old AND l.state NOT IN ('queued', 'running')
        ),
        ended AS MATERIALIZED (
            SELECT l.row_id, l.state
            FROM looked l
            WHERE l.was = 'running' AND l.state <> 'running' AND NOT l.is_old
        ),
        noted AS (
            UPDATE schedule_runs f
            SET state = e.state, ended_at = v_now
            FROM ended e
            WHERE f.ctid = e.row_id AND f.slot BETWEEN p_slot AND p_slot
        ),
        gone AS (
            DELETE FROM schedule_runs f
            USING old o
            WHERE f.ctid = o.row_id AND f.slot BETWEEN p_slot AND p_slot
            RETURNING f.instant, f.task_id
        )
        SELECT l.count, l.last, g.count AS gone, g.first_started, g.last_started
        INTO v_seen
        FROM (SELECT count(*) AS count, max(l.instant) AS last FROM looked l) l
        CROSS JOIN (
            SELECT count(*) AS count,
                min(g.instant) FILTER (WHERE g.task_id IS NOT NULL) AS first_started,
                max(g.instant) FILTER (WHERE g.task_id IS NOT NULL) AS last_started
            FROM gone g
        ) g;
        deleted_count := deleted_count + v_seen.gone;
        IF v_seen.first_started IS NOT NULL THEN
            UPDATE schedules s
            SET forgotten_from = least(s.forgotten_from, v_seen.first_started),
                forgotten_until = greatest(s.forgotten_until, v_seen.last_started)
            WHERE (s.slot, s.namespace, s.schedule_id) = (p_slot, namespace, schedule_id);
        END IF;
        IF v_seen.count = v_room THEN
            instant := v_seen.last;
            EXIT;
        END IF;
        instant := NULL;
        v_room := v_room - greatest(v_seen.count, 1);
        EXIT WHEN v_room <= 0;
    END LOOP;
    RETURN NEXT;
END;
$$;
