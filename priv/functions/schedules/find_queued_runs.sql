-- Finds queued runs that may be started now: of each schedule the oldest, of at most p_limit schedules behind
-- p_after, in the order of their keys.
-- Returns: one row per schedule looked at, with what claim_schedules tells; is_ready: nothing of it is at work, or
-- the run does not care. Of a paused namespace nothing is ready, and one schedule per slot is looked at.
CREATE FUNCTION find_queued_runs(
    p_limit             integer,
    p_after_slot        smallint,
    p_after_namespace   text,
    p_after_schedule_id text
)
RETURNS TABLE (
    slot smallint, namespace text, schedule_id text, target text, target_id text, is_gated boolean,
    revision bigint, instant timestamptz, due_at timestamptz, cause text, overlap_policy text,
    is_ready boolean
)
BY INDEX
AS $$
#variable_conflict use_variable
DECLARE
    v_paused   text[] := ARRAY(SELECT n.name FROM namespaces n WHERE n.paused_at IS NOT NULL);
    v_run      schedule_runs%ROWTYPE;
    v_schedule schedules%ROWTYPE;
BEGIN
    slot := p_after_slot;
    namespace := p_after_namespace;
    schedule_id := p_after_schedule_id;
    FOR n IN 1 .. p_limit LOOP
        IF namespace = ANY (v_paused) THEN
            SELECT f.*
            INTO v_run
            FROM schedule_runs f
            WHERE f.state = 'queued' AND (f.slot, f.namespace) > (slot, namespace)
            ORDER BY f.slot, f.namespace, f.schedule_id, f.instant
            LIMIT 1;
        ELSE
            SELECT f.*
            INTO v_run
            FROM schedule_runs f
            WHERE f.state = 'queued'
                AND (f.slot, f.namespace, f.schedule_id) > (slot, namespace, schedule_id)
            ORDER BY f.slot, f.namespace, f.schedule_id, f.instant
            LIMIT 1;
        END IF;
        EXIT WHEN NOT FOUND;
        slot := v_run.slot;
        namespace := v_run.namespace;
        schedule_id := v_run.schedule_id;
        SELECT s.*
        INTO v_schedule
        FROM schedules s
        WHERE (s.slot, s.namespace, s.schedule_id) = (slot, namespace, schedule_id);
        CONTINUE WHEN NOT FOUND;
        target := v_schedule.target;
        target_id := v_schedule.target_id;
        is_gated := v_schedule.constraints IS NOT NULL;
        revision := v_schedule.revision;
        instant := v_run.instant;
        due_at := v_run.due_at;
        cause := v_run.cause;
        overlap_policy := v_run.overlap_policy;
        is_ready := namespace <> ALL (v_paused)
            AND (v_run.overlap_policy <> 'queue_one' OR NOT EXISTS (
                SELECT
                FROM schedule_runs w
                WHERE (w.slot, w.namespace, w.schedule_id) = (slot, namespace, schedule_id)
                    AND w.state = 'running'
                    AND read_run_state(
                        w.process_slot, w.namespace, w.process_id, w.task_type, w.task_id)
                        = 'running'
            ));
        RETURN NEXT;
    END LOOP;
END;
$$;
