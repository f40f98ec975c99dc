-- Records the head of a queue, or deletes the queue if it is empty.
-- Locks: the queue. The caller has locked one of its gates, if it has any.
-- Returns: whether the queue has any tasks.
CREATE FUNCTION refresh_gate_queue(p_namespace text, p_queue text)
RETURNS boolean
AS $$
DECLARE
    v_head   gated%ROWTYPE;
    v_oldest gated%ROWTYPE;
BEGIN
    SELECT *
    INTO v_head
    FROM gated g
    WHERE (g.namespace, g.queue) = (p_namespace, p_queue)
    ORDER BY g.namespace, g.queue, g.priority, g.task_id
    LIMIT 1;
    IF NOT FOUND THEN
        DELETE FROM gate_queues l WHERE (l.namespace, l.queue) = (p_namespace, p_queue);
        RETURN false;
    END IF;
    SELECT *
    INTO v_oldest
    FROM gated g
    WHERE (g.namespace, g.queue) = (p_namespace, p_queue)
    ORDER BY g.namespace, g.queue, g.ready_at, g.task_id
    LIMIT 1;
    UPDATE gate_queues l
    SET head_priority = v_head.priority, head_task_id = v_head.task_id,
        oldest_at = v_oldest.ready_at, oldest_id = v_oldest.task_id
    WHERE (l.namespace, l.queue) = (p_namespace, p_queue)
        AND (l.head_priority, l.head_task_id, l.oldest_at, l.oldest_id)
            IS DISTINCT FROM (
                v_head.priority, v_head.task_id, v_oldest.ready_at, v_oldest.task_id);
    RETURN true;
END;
$$;
