-- Takes the locks of orders, and then of gates: after those of processes, before anything else. Missing
-- orders are created: an order is deleted with its last task (settle_gates).
-- Locks: orders in key order, then gates in key order.
-- Returns: nothing; missing gates are skipped.
CREATE FUNCTION lock_gates(
    p_order_namespace text[], p_order_key text[], p_gate_namespace text[], p_gate text[]
)
RETURNS void
AS $$
DECLARE
    v_wanted integer;
    v_locked integer;
BEGIN
    IF cardinality(p_order_key) > 0 THEN
        SELECT count(*)
        INTO v_wanted
        FROM (
            SELECT DISTINCT i.namespace, i.order_key
            FROM unnest(p_order_namespace, p_order_key) AS i (namespace, order_key)
        ) i;
        -- The loop runs once, unless an order is deleted between the two statements. Then the next
        -- round inserts it, which also locks it.
        LOOP
            INSERT INTO orders (namespace, order_key)
            SELECT i.namespace, i.order_key
            FROM (
                SELECT DISTINCT i.namespace COLLATE "C" AS namespace, i.order_key COLLATE "C" AS order_key
                FROM unnest(p_order_namespace, p_order_key) AS i (namespace, order_key)
            ) i
            ORDER BY i.namespace, i.order_key
            ON CONFLICT DO NOTHING;
            PERFORM
            FROM orders o
            WHERE (o.namespace, o.order_key) IN (
                SELECT i.namespace, i.order_key
                FROM unnest(p_order_namespace, p_order_key) AS i (namespace, order_key)
            )
            ORDER BY o.namespace, o.order_key
            FOR NO KEY UPDATE;
            GET DIAGNOSTICS v_locked = ROW_COUNT;
            EXIT WHEN v_locked = v_wanted;
        END LOOP;
    END IF;
    IF cardinality(p_gate) > 0 THEN
        PERFORM
        FROM gates g
        WHERE (g.namespace, g.gate) IN (
            SELECT i.namespace, i.gate
            FROM unnest(p_gate_namespace, p_gate) AS i (namespace, gate)
        )
        ORDER BY g.namespace, g.gate
        FOR NO KEY UPDATE;
    END IF;
END;
$$;
