-- Claims schedules that are due, the longest overdue first; not those of paused namespaces, which catch up later. A
-- claim only divides the work among replicas: whether a run is still to be done is decided by run_schedules.
-- While a namespace is paused, the due schedules of each other namespace are looked up by themselves, so that those of
-- the paused one, of which there may be many, are not read each time. Others that claim lock the same ones first.
-- Locks: schedules, SKIP LOCKED.
-- Returns: the schedules without their payloads, in any order, and the instant by which they are due.
CREATE FUNCTION claim_schedules(
    p_now   timestamptz,
    p_lease double precision,
    p_limit integer
)
RETURNS TABLE (
    slot smallint, namespace text, schedule_id text, cron text, time_zone text, every interval,
    anchor timestamptz, jitter interval, start_at timestamptz, end_at timestamptz,
    overlap_policy text, catch_up_window interval, target text, target_id text, is_gated boolean,
    revision bigint, upcoming_instant timestamptz, upcoming_due_at timestamptz, now timestamptz
)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now       timestamptz := coalesce(p_now, clock_timestamp());
    v_is_paused boolean := EXISTS (SELECT FROM namespaces n WHERE n.paused_at IS NOT NULL);
BEGIN
    RETURN QUERY
    WITH due_anywhere AS MATERIALIZED (
        SELECT s.slot, s.namespace, s.schedule_id
        FROM schedules s
        WHERE NOT v_is_paused AND s.next_at <= v_now
            AND (s.claimed_until IS NULL OR s.claimed_until <= v_now)
        ORDER BY s.next_at
        LIMIT p_limit
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    due_elsewhere AS MATERIALIZED (
        SELECT s.slot, s.namespace, s.schedule_id
        FROM (
            SELECT d.*
            FROM namespaces n
            CROSS JOIN LATERAL (
                SELECT s.slot, s.namespace, s.schedule_id, s.next_at
                FROM schedules s
                -- By rows, which schedules_due does not have in order: it leads past those of all namespaces.
                WHERE s.next_at IS NOT NULL
                    AND (s.namespace, s.next_at) >= (n.name, '-infinity'::timestamptz)
                    AND (s.namespace, s.next_at) <= (n.name, v_now)
                    AND (s.claimed_until IS NULL OR s.claimed_until <= v_now)
                ORDER BY s.namespace, s.next_at
                LIMIT p_limit
            ) d
            WHERE v_is_paused AND n.paused_at IS NULL
            ORDER BY d.next_at
            LIMIT p_limit
        ) d
        JOIN schedules s USING (slot, namespace, schedule_id)
        WHERE s.next_at <= v_now AND (s.claimed_until IS NULL OR s.claimed_until <= v_now)
        FOR NO KEY UPDATE OF s SKIP LOCKED
    ),
    due AS (
        SELECT * FROM due_anywhere
        UNION ALL
        SELECT * FROM due_elsewhere
    )
    UPDATE schedules s
    SET claimed_until = v_now + make_interval(secs => p_lease)
    FROM due d
    WHERE (s.slot, s.namespace, s.schedule_id) = (d.slot, d.namespace, d.schedule_id)
    RETURNING s.slot, s.namespace, s.schedule_id, s.cron, s.time_zone, s.every, s.anchor, s.jitter,
        s.start_at, s.end_at, s.overlap_policy::text, s.catch_up_window, s.target, s.target_id,
        s.constraints IS NOT NULL, s.revision, s.next_instant, s.next_at, v_now;
END;
$$;
