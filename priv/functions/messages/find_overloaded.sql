-- Finds the receivers of messages that have p_queue_max waiting tasks or more: a cycle of messages, or a flood, ends
-- there.
-- Returns: their keys.
CREATE FUNCTION find_overloaded(p_messages messages[], p_queue_max integer)
RETURNS SETOF process_key
STABLE
BY KEY
AS $$
BEGIN
    RETURN QUERY
    SELECT r.slot, r.namespace, r.process_id
    FROM (
        SELECT DISTINCT m.receiver_slot AS slot, m.receiver_namespace AS namespace,
            m.receiver_id AS process_id
        FROM unnest(p_messages) AS m
    ) r
    WHERE (
        SELECT s.task_id
        FROM schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (r.slot, r.namespace, r.process_id)
        ORDER BY s.slot, s.namespace, s.process_id, s.task_id
        OFFSET p_queue_max - 1
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT h.task_id
        FROM held h
        WHERE (h.slot, h.namespace, h.process_id) = (r.slot, r.namespace, r.process_id)
        ORDER BY h.slot, h.namespace, h.process_id, h.task_id
        OFFSET p_queue_max - 1
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT g.task_id
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id) = (r.slot, r.namespace, r.process_id)
        ORDER BY g.slot, g.namespace, g.process_id, g.task_id
        OFFSET p_queue_max - 1
        LIMIT 1
    ) IS NOT NULL;
END;
$$;
