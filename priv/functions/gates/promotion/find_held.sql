-- Finds the items that need a gate or an order that another transaction keeps locked: one that their process holds
-- or wants, or (w_*) that they are about to want. It never waits for a lock.
-- Locks: the other gates and orders, with SKIP LOCKED.
-- Returns: these items, from 1, each once, and the gate or order that each waits for.
CREATE FUNCTION find_held(
    p_key   process_key[],
    w_item  integer[] DEFAULT NULL,
    w_gate  text[] DEFAULT NULL,
    w_order text[] DEFAULT NULL
)
RETURNS TABLE (item integer, reason text)
AS $$
BEGIN
    RETURN QUERY
    WITH item AS MATERIALIZED (
        SELECT i.item::integer, i.slot, i.namespace, i.process_id
        FROM unnest(p_key) WITH ORDINALITY AS i (slot, namespace, process_id, item)
    ),
    gated_item AS MATERIALIZED (
        SELECT i.item, g.namespace, g.gates, g.order_key
        FROM item i
        JOIN gated g USING (slot, namespace, process_id)
    ),
    wanted AS MATERIALIZED (
        SELECT i.item, h.namespace, h.gate, NULL AS order_key
        FROM item i
        JOIN gate_holders h USING (slot, namespace, process_id)
        UNION
        SELECT g.item, g.namespace, u.gate, NULL
        FROM gated_item g
        CROSS JOIN LATERAL unnest(g.gates) AS u (gate)
        UNION
        SELECT g.item, g.namespace, NULL, g.order_key
        FROM gated_item g
        UNION
        SELECT w.item, p_key[w.item].namespace, w.gate, NULL
        FROM unnest(w_item, w_gate) AS w (item, gate)
        UNION
        SELECT w.item, p_key[w.item].namespace, NULL, w.order_key
        FROM unnest(w_item, w_order) AS w (item, order_key)
    ),
    free_gates AS MATERIALIZED (
        SELECT g.namespace, g.gate
        FROM gates g
        JOIN (SELECT DISTINCT w.namespace, w.gate FROM wanted w) w USING (namespace, gate)
        ORDER BY g.namespace, g.gate
        FOR NO KEY UPDATE OF g SKIP LOCKED
    ),
    free_orders AS MATERIALIZED (
        SELECT o.namespace, o.order_key
        FROM orders o
        JOIN (SELECT DISTINCT w.namespace, w.order_key FROM wanted w) w USING (namespace, order_key)
        ORDER BY o.namespace, o.order_key
        FOR NO KEY UPDATE OF o SKIP LOCKED
    )
    SELECT b.item, min(b.reason)
    FROM (
        SELECT w.item, 'gate ' || w.namespace || '/' || w.gate AS reason
        FROM wanted w
        JOIN gates g USING (namespace, gate)
        WHERE NOT EXISTS (
            SELECT FROM free_gates f WHERE (f.namespace, f.gate) = (w.namespace, w.gate)
        )
        UNION ALL
        SELECT w.item, 'order ' || w.namespace || '/' || w.order_key
        FROM wanted w
        JOIN orders o USING (namespace, order_key)
        WHERE NOT EXISTS (
            SELECT FROM free_orders f WHERE (f.namespace, f.order_key) = (w.namespace, w.order_key)
        )
    ) b
    GROUP BY b.item;
END;
$$;
