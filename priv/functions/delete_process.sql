-- Deletes a process with all its rows. p_except: a task that has an answer of its own.
-- Locks: none of its own; the caller has locked the process.
-- Returns: its unfinished tasks as settle_tasks tells the cancelled ones; null if there are none.
CREATE FUNCTION delete_process(
    p_slot smallint, p_namespace text, p_process_id text, p_except bigint
)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    v_cancelled jsonb;
BEGIN
    -- A caller whose own replica carries the task is noted nowhere else than in that replica.
    SELECT jsonb_agg(jsonb_build_array(
        t.task_id, t.task_type,
        to_jsonb(array_remove(array_append(t.reply_to, r.replica_id), NULL))))
    INTO v_cancelled
    FROM tasks t
    LEFT JOIN running r USING (slot, namespace, process_id, task_id)
    WHERE (t.slot, t.namespace, t.process_id) = (p_slot, p_namespace, p_process_id)
        AND t.status IN ('waiting', 'running', 'blocked')
        AND t.task_id IS DISTINCT FROM p_except;

    DELETE FROM running
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM schedule
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM tasks
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM events
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM processes
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    RETURN v_cancelled;
END;
$$;
