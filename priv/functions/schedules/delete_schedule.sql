-- Deletes a schedule with its runs, if it is at the revision that is expected; 0: at any. One statement: no lock is
-- held while a replica has the word.
-- Locks: the schedule.
-- Returns: the revision at which it was, and whether it is deleted; null if there is none.
CREATE FUNCTION delete_schedule(
    p_slot        smallint,
    p_namespace   text,
    p_schedule_id text,
    p_expected    bigint,
    p_audit       text,
    OUT revision  bigint,
    OUT deleted   boolean
)
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
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
    revision := v_schedule.revision;
    deleted := revision IS NOT NULL AND p_expected IN (0, revision);
    IF deleted THEN
        PERFORM write_audit(p_audit, describe_schedule(v_schedule), NULL);
        DELETE FROM schedule_runs f
        WHERE (f.slot, f.namespace, f.schedule_id) = (p_slot, p_namespace, p_schedule_id);
        DELETE FROM schedules s
        WHERE (s.slot, s.namespace, s.schedule_id) = (p_slot, p_namespace, p_schedule_id);
    END IF;
END;
$$;
