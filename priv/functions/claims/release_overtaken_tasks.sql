-- Lets available tasks that are not first in the queue of their process, since a call was put before them, wait for
-- the process again, and release their gates: a task that cannot run must not keep others waiting.
-- p_first_id: the first task of the queue, if the caller knows it.
-- Locks: none of its own; the caller has locked the process and the gates of these tasks.
-- Returns: the released gates; null if there are none.
CREATE FUNCTION release_overtaken_tasks(
    p_now        timestamptz,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_first_id   bigint DEFAULT NULL
)
RETURNS text[]
AS $$
DECLARE
    v_left text[];
    v_task record;
BEGIN
    FOR v_task IN
        SELECT g.task_id
        FROM gated g
        JOIN schedule s USING (slot, namespace, process_id, task_id)
        WHERE (g.slot, g.namespace, g.process_id, g.state)
                = (p_slot, p_namespace, p_process_id, 'available')
            AND g.task_id IS DISTINCT FROM p_first_id
        ORDER BY g.task_id
    LOOP
        p_first_id := coalesce(
            p_first_id, (find_first_task(p_slot, p_namespace, p_process_id)).task_id);
        CONTINUE WHEN v_task.task_id = p_first_id;
        PERFORM dequeue_task(p_now, p_slot, p_namespace, p_process_id, v_task.task_id);
        PERFORM move_gated(
            p_now, p_slot, p_namespace, p_process_id, v_task.task_id, 'process');
        v_left := v_left || release_gates(p_slot, p_namespace, p_process_id, v_task.task_id);
    END LOOP;
    RETURN v_left;
END;
$$;
