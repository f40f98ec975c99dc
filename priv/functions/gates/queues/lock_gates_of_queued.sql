-- Takes the locks of the gates held by the tasks in the queue of a process, because one of these tasks may have to
-- give them back (release_overtaken_tasks).
-- Locks: these gates, with SKIP LOCKED; the caller has locked the process.
-- Returns: whether all of them are locked now.
CREATE FUNCTION lock_gates_of_queued(p_slot smallint, p_namespace text, p_process_id text)
RETURNS boolean
AS $$
DECLARE
    v_gate text;
BEGIN
    FOR v_gate IN
        SELECT h.gate
        FROM gate_holders h
        JOIN schedule s USING (slot, namespace, process_id, task_id)
        WHERE (h.slot, h.namespace, h.process_id) = (p_slot, p_namespace, p_process_id)
        ORDER BY h.gate
    LOOP
        PERFORM
        FROM gates g
        WHERE (g.namespace, g.gate) = (p_namespace, v_gate)
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END;
$$;
