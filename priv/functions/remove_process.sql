-- Removes a process in any status, if it is still the one with that init task: a removal that was
-- held up on its way must not meet a later process of the same id. A step in flight finds its lease
-- gone.
-- Locks: the process.
-- Returns: whether it existed, and its unfinished tasks as settle_tasks tells the cancelled ones.
CREATE FUNCTION remove_process(
    p_now          timestamptz,
    p_slot         smallint,
    p_namespace    text,
    p_process_id   text,
    p_init_task_id bigint
)
RETURNS TABLE (existed boolean, cancelled jsonb)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    PERFORM
    FROM processes
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id)
        AND init_task_id = p_init_task_id
    FOR UPDATE;
    existed := FOUND;
    IF existed THEN
        cancelled := delete_process(
            coalesce(p_now, clock_timestamp()) - interval '1 minute',
            p_slot, p_namespace, p_process_id, NULL);
    END IF;
    RETURN NEXT;
END;
$$;
