-- Moves a task with constraints to another state, and counts the time spent in the one before. Where it enters or
-- leaves a queue, the queue's head is recorded. p_lacks: the gates that it is queued for.
-- Locks: its row. The caller has locked its process, or its gates where it is queued for them; and its gates where
-- it enters a queue.
-- Returns: whether the queue that it has entered is new, so that the caller has to look at it (promote_gates).
CREATE FUNCTION move_gated(
    p_now        timestamptz,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_task_id    bigint,
    p_state      gated_state,
    p_lacks      text[] DEFAULT NULL
)
RETURNS boolean
AS $$
DECLARE
    v_was     gated%ROWTYPE;
    v_started timestamptz;
BEGIN
    SELECT *
    INTO STRICT v_was
    FROM gated g
    WHERE (g.slot, g.namespace, g.process_id, g.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    IF v_was.state = 'available' THEN
        SELECT t.started_at
        INTO v_started
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p_slot, p_namespace, p_process_id, p_task_id);
    END IF;
    UPDATE gated g
    SET state = p_state,
        state_since = greatest(p_now, v_was.state_since),
        spent_us = spent_us(p_now, v_was, v_started),
        queue = p_lacks::text
    WHERE (g.slot, g.namespace, g.process_id, g.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    IF v_was.queue IS NOT NULL AND p_state <> 'gates' THEN
        PERFORM refresh_gate_queue(v_was.namespace, v_was.queue);
    END IF;
    IF p_state <> 'gates' THEN
        RETURN false;
    END IF;
    INSERT INTO gate_queues AS l (
        namespace, queue, gates, head_priority, head_task_id, oldest_at, oldest_id
    ) VALUES (
        v_was.namespace, p_lacks::text, p_lacks, v_was.priority, v_was.task_id, v_was.ready_at,
        v_was.task_id
    )
    ON CONFLICT (namespace, queue) DO UPDATE
    SET head_priority = CASE
            WHEN (excluded.head_priority, excluded.head_task_id) < (l.head_priority, l.head_task_id)
            THEN excluded.head_priority ELSE l.head_priority END,
        head_task_id = CASE
            WHEN (excluded.head_priority, excluded.head_task_id) < (l.head_priority, l.head_task_id)
            THEN excluded.head_task_id ELSE l.head_task_id END,
        oldest_at = least(l.oldest_at, excluded.oldest_at),
        oldest_id = CASE
            WHEN (excluded.oldest_at, excluded.oldest_id) < (l.oldest_at, l.oldest_id)
            THEN excluded.oldest_id ELSE l.oldest_id END;
    RETURN (
        SELECT l.waits_on IS NULL
        FROM gate_queues l
        WHERE (l.namespace, l.queue) = (v_was.namespace, p_lacks::text)
    );
END;
$$;
