-- Finds the task to try first for a source. For a gate with a free place it is from the queue that waits for the gate
-- and has the oldest task, if that has waited for longer than p_starvation_timeout, or else the best head; for a new
-- queue it is the head.
-- Returns: the source with its head; the queue is null if no task can be tried.
CREATE FUNCTION find_best_head(
    p_now                timestamptz,
    p_starvation_timeout double precision,
    p_namespace          text,
    p_gate               text,
    p_queue              text
)
RETURNS promoting
STABLE
AS $$
DECLARE
    v_aged_until timestamptz := p_now - make_interval(secs => p_starvation_timeout);
    v_queue      gate_queues%ROWTYPE;
BEGIN
    IF p_gate IS NULL THEN
        SELECT *
        INTO v_queue
        FROM gate_queues l
        WHERE (l.namespace, l.queue) = (p_namespace, p_queue) AND l.waits_on IS NULL;
    ELSIF EXISTS (
        SELECT
        FROM gates g
        WHERE (g.namespace, g.gate) = (p_namespace, p_gate) AND g.held < g.capacity
    ) THEN
        SELECT *
        INTO v_queue
        FROM gate_queues l
        WHERE (l.namespace, l.waits_on) = (p_namespace, p_gate) AND l.oldest_at <= v_aged_until
        ORDER BY l.namespace, l.waits_on, l.oldest_at, l.oldest_id
        LIMIT 1;
        IF NOT FOUND THEN
            SELECT *
            INTO v_queue
            FROM gate_queues l
            WHERE (l.namespace, l.waits_on) = (p_namespace, p_gate)
            ORDER BY l.namespace, l.waits_on, l.head_priority, l.head_task_id
            LIMIT 1;
        END IF;
    END IF;
    RETURN ROW(
        p_namespace, p_gate, v_queue.queue,
        CASE WHEN v_queue.oldest_at <= v_aged_until THEN v_queue.oldest_at END,
        CASE WHEN v_queue.oldest_at <= v_aged_until THEN v_queue.oldest_id END,
        v_queue.head_priority, v_queue.head_task_id
    )::promoting;
END;
$$;
