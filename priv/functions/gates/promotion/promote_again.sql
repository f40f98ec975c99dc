-- Looks again at gates, queues and orders of one namespace that another transaction could not look at, or found to
-- have more than it may take; or that the safety net found (find_idle_gates).
-- Locks: the processes of those who are next, in key order; then as settle_gates.
-- Returns: effects, as settle_gates.
CREATE FUNCTION promote_again(
    LIKE own_arguments,
    p_limit     integer,
    p_namespace text,
    p_gate      text[],
    p_queue     text[],
    p_order_key text[]
)
RETURNS TABLE (effects jsonb)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_key    process_key[];
    v_queues text[];
BEGIN
    -- The queues, and who is at their heads; read without a lock, so that it may be others by then.
    SELECT array_agg(DISTINCT l.queue)
    INTO v_queues
    FROM (
        SELECT unnest(p_queue) AS queue
        UNION ALL
        SELECT n.queue
        FROM unnest(p_gate) AS w (gate)
        CROSS JOIN LATERAL (
            SELECT l.queue
            FROM gate_queues l
            WHERE (l.namespace, l.waits_on) = (p_namespace, w.gate)
            ORDER BY l.namespace, l.waits_on, l.head_priority, l.head_task_id
            LIMIT p_limit
        ) n
    ) l;
    SELECT array_agg((h.slot, p_namespace, h.process_id)::process_key)
    INTO v_key
    FROM (
        SELECT DISTINCT c.slot, c.process_id
        FROM (
            SELECT g.slot, g.process_id
            FROM unnest(v_queues) AS n (queue)
            CROSS JOIN LATERAL (
                (SELECT a.slot, a.process_id
                FROM gated a
                WHERE (a.namespace, a.queue) = (p_namespace, n.queue)
                ORDER BY a.namespace, a.queue, a.priority, a.task_id
                LIMIT 1)
                UNION ALL
                (SELECT b.slot, b.process_id
                FROM gated b
                WHERE (b.namespace, b.queue) = (p_namespace, n.queue)
                ORDER BY b.namespace, b.queue, b.ready_at, b.task_id
                LIMIT 1)
            ) g
            UNION ALL
            SELECT o.slot, o.process_id
            FROM unnest(p_order_key) AS k (order_key)
            CROSS JOIN LATERAL (
                -- The smallest version: all others wait with reason.
                SELECT f.order_version
                FROM gated f
                WHERE (f.namespace, f.order_key) = (p_namespace, k.order_key)
                ORDER BY f.namespace, f.order_key, f.order_version
                LIMIT 1
            ) f
            CROSS JOIN LATERAL (
                SELECT g.slot, g.process_id
                FROM gated g
                WHERE (g.namespace, g.order_key, g.order_version)
                        = (p_namespace, k.order_key, f.order_version)
                    AND g.state = 'order'
                LIMIT p_limit
            ) o
        ) c
        ORDER BY c.slot, c.process_id
    ) h;
    PERFORM
    FROM (
        SELECT i.slot, i.namespace, i.process_id
        FROM unnest(v_key) AS i
        ORDER BY i.slot, i.namespace, i.process_id
    ) i
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
        FOR NO KEY UPDATE
    ) p;

    -- settle_gates locks their orders and gates and evaluates the tasks. All that can pass do so in one
    -- promotion, since separate promotions would let tasks pass in the wrong order.
    effects := settle_gates(
        coalesce(p_now, clock_timestamp()), p_replica_id, p_starvation_timeout, p_limit, v_key,
        NULL, p_namespace, p_order_key, p_gate, p_queue);
    RETURN NEXT;
END;
$$;
