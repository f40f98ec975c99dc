-- Retention: deletes tasks in one slot of a namespace that ended longer ago than p_age, except the init task of each
-- process, by which it is known, and the task that broke it, which SimpleRepair may run again. A slot is a
-- thousandth of the table, found by the primary key.
-- Locks: the tasks; nothing else changes ended tasks.
-- Returns: how many are gone.
CREATE FUNCTION delete_old_tasks(
    p_now timestamptz, p_slot smallint, p_namespace text, p_age interval, p_limit integer
)
RETURNS integer
BY KEY
AS $$
DECLARE
    v_before timestamptz := coalesce(p_now, clock_timestamp()) - p_age;
    v_count  integer;
BEGIN
    WITH old AS (
        SELECT t.slot, t.namespace, t.process_id, t.task_id
        FROM tasks t
        JOIN processes p USING (slot, namespace, process_id)
        WHERE t.slot = p_slot
            AND t.namespace = p_namespace
            AND t.finished_at < v_before
            AND t.task_id <> p.init_task_id
            AND t.task_id IS DISTINCT FROM p.corrupted_by
        LIMIT p_limit
        FOR UPDATE OF t SKIP LOCKED
    ),
    refused AS (
        DELETE FROM refused_messages r
        USING old o
        WHERE (r.slot, r.namespace, r.process_id, r.task_id)
            = (o.slot, o.namespace, o.process_id, o.task_id)
    ),
    forgotten AS (
        DELETE FROM memos m
        USING old o
        WHERE (m.slot, m.namespace, m.process_id, m.task_id)
            = (o.slot, o.namespace, o.process_id, o.task_id)
    )
    DELETE FROM tasks t
    USING old o
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (o.slot, o.namespace, o.process_id, o.task_id);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END;
$$;
