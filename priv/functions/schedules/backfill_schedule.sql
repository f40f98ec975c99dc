-- Queues instants of the past: those that have started nothing yet, and wait for nothing.
-- Locks: the schedule.
-- Returns: the verdict: queued, with how many now are; not_found; changed, if it is at another revision than was
-- read; forgotten, if one of the instants is where retention has deleted runs.
CREATE FUNCTION backfill_schedule(
    p_now            timestamptz,
    p_slot           smallint,
    p_namespace      text,
    p_schedule_id    text,
    p_revision       bigint,
    p_overlap_policy text,
    p_instant        timestamptz[],
    p_due_at         timestamptz[],
    p_audit          text
)
RETURNS TABLE (verdict text, queued_count integer, forgotten_from timestamptz, forgotten_until timestamptz)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_schedule schedules%ROWTYPE;
BEGIN
    SELECT s.*
    INTO v_schedule
    FROM schedules s
    WHERE (s.slot, s.namespace, s.schedule_id) = (p_slot, p_namespace, p_schedule_id)
    FOR UPDATE;
    queued_count := 0;
    forgotten_from := v_schedule.forgotten_from;
    forgotten_until := v_schedule.forgotten_until;
    IF v_schedule.slot IS NULL THEN
        verdict := 'not_found';
    ELSIF v_schedule.revision <> p_revision THEN
        verdict := 'changed';
    ELSIF EXISTS (
        SELECT FROM unnest(p_instant) i (instant)
        WHERE i.instant BETWEEN v_schedule.forgotten_from AND v_schedule.forgotten_until
    ) THEN
        verdict := 'forgotten';
    ELSE
        verdict := 'queued';
        INSERT INTO schedule_runs AS f (
            slot, namespace, schedule_id, instant, cause, state, overlap_policy, due_at, recorded_at
        )
        SELECT p_slot, p_namespace, p_schedule_id, i.instant, 'backfill', 'queued',
            p_overlap_policy::overlap_policy, i.due_at, coalesce(p_now, clock_timestamp())
        FROM unnest(p_instant, p_due_at) i (instant, due_at)
        ORDER BY i.instant
        ON CONFLICT ON CONSTRAINT schedule_runs_pkey DO UPDATE
        SET cause = 'backfill', state = 'queued', overlap_policy = excluded.overlap_policy,
            recorded_at = excluded.recorded_at, process_slot = NULL, process_id = NULL, task_type = NULL,
            error_code = NULL, error_reason = NULL, error_message = NULL, missed_count = NULL,
            missed_until = NULL
        WHERE f.state IN ('skipped', 'missed', 'refused');
        GET DIAGNOSTICS queued_count = ROW_COUNT;
        PERFORM write_audit(p_audit, NULL, jsonb_build_object('queued_count', queued_count));
    END IF;
    RETURN NEXT;
END;
$$;
