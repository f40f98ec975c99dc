-- Has those wait for their process again that are available and not the first in its line: it went busy
-- with another call meanwhile. They give their gates back, or else whoever is first of the others there
-- would wait for gates of who cannot run.
-- p_first_id: who is first, where the caller knows.
-- Locks: none of its own; the caller has locked the process and the gates of these.
-- Returns: the gates given back; null: none.
CREATE FUNCTION step_back(
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
            p_first_id, (first_in_line(p_slot, p_namespace, p_process_id)).task_id);
        CONTINUE WHEN v_task.task_id = p_first_id;
        PERFORM leave_line(p_now, p_slot, p_namespace, p_process_id, v_task.task_id);
        PERFORM move_gated(
            p_now, p_slot, p_namespace, p_process_id, v_task.task_id, 'process');
        v_left := v_left || give_back_gates(p_slot, p_namespace, p_process_id, v_task.task_id);
    END LOOP;
    RETURN v_left;
END;
$$;
