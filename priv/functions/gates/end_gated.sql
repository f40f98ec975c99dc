-- Forgets a task that carried constraints and has ended: its gates are given back, and what it has spent in which
-- state stays with the task.
-- Locks: none of its own; the caller has locked the process, its orders and gates.
-- Returns: the gates given back; null: none.
CREATE FUNCTION end_gated(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text, p_task_id bigint
)
RETURNS text[]
AS $$
DECLARE
    v_gates text[] := release_gates(p_slot, p_namespace, p_process_id, p_task_id);
    v_task  gated%ROWTYPE;
BEGIN
    DELETE FROM gated g
    WHERE (g.slot, g.namespace, g.process_id, g.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id)
    RETURNING * INTO v_task;
    IF v_task.queue IS NOT NULL THEN
        PERFORM refresh_gate_queue(p_namespace, v_task.queue);
    END IF;
    UPDATE tasks t
    SET spent_us = spent_us(p_now, v_task, t.started_at)
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    RETURN v_gates;
END;
$$;
