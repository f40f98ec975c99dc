-- Finds what the promotion of tasks has missed, or what a replica that died had yet to look at again:
-- gates of some namespaces that have places while lines wait for them, lines that wait for nothing, and
-- orders whose smallest version still waits for a smaller one. By index, from line to line and from order
-- to order: it reads what waits, and neither the gates nor the orders that there ever were. At most
-- p_limit of each kind.
-- Locks: none.
-- Returns: one row for each, of which one of gate, line and order is not null: for promote_again.
CREATE FUNCTION find_idle_gates(p_limit integer, p_namespace text[])
RETURNS TABLE (namespace text, gate text, line text, order_key text)
LANGUAGE plpgsql
STABLE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_namespace text;
BEGIN
    FOREACH v_namespace IN ARRAY p_namespace LOOP
        RETURN QUERY
        SELECT DISTINCT v_namespace, l.waits_on, NULL::text, NULL::text
        FROM gate_lines l
        JOIN gates g ON (g.namespace, g.gate) = (l.namespace, l.waits_on)
        WHERE l.namespace = v_namespace AND g.held < g.capacity
        LIMIT p_limit;
        RETURN QUERY
        SELECT v_namespace, NULL::text, l.line, NULL::text
        FROM gate_lines l
        WHERE l.namespace = v_namespace AND l.waits_on IS NULL
        LIMIT p_limit;
        RETURN QUERY
        WITH RECURSIVE smallest AS (
            (SELECT g.order_key, g.order_version
            FROM gated g
            WHERE g.namespace = v_namespace AND g.order_key IS NOT NULL
            ORDER BY g.namespace, g.order_key, g.order_version
            LIMIT 1)
            UNION ALL
            SELECT n.order_key, n.order_version
            FROM smallest s
            CROSS JOIN LATERAL (
                SELECT g.order_key, g.order_version
                FROM gated g
                WHERE g.namespace = v_namespace AND g.order_key > s.order_key
                ORDER BY g.namespace, g.order_key, g.order_version
                LIMIT 1
            ) n
        )
        SELECT v_namespace, NULL::text, NULL::text, s.order_key
        FROM smallest s
        -- Not EXISTS, which would become a join that reads all that wait for an order.
        WHERE (
            SELECT true
            FROM gated g
            WHERE (g.namespace, g.order_key, g.order_version)
                    = (v_namespace, s.order_key, s.order_version)
                AND g.state = 'order'
            LIMIT 1
        )
        LIMIT p_limit;
    END LOOP;
END;
$$;
