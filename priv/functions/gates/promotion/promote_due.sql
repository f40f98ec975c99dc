-- Promotes tasks with constraints that have reached their instant, in the given namespaces, at most p_limit in each.
-- Locks: processes in key order, and the orders and gates of these, all with SKIP LOCKED; then as settle_gates.
-- Returns: effects, as settle_gates; and with a wait_seconds of 0, one task of each namespace that has more: those
-- beyond the limit, and those whose process was locked. It is 0.1 where an order or a gate
-- was locked.
CREATE FUNCTION promote_due(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_limit              integer,
    p_overdue            double precision,
    p_namespace          text[]
)
RETURNS TABLE (effects jsonb)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_until      timestamptz
        := coalesce(p_now, clock_timestamp()) - make_interval(secs => p_overdue);
    v_slot       smallint[];
    v_namespace  text[];
    v_process_id text[];
    v_is_held    boolean;
BEGIN
    WITH found AS (
        SELECT DISTINCT d.slot, n.namespace, d.process_id
        FROM unnest(p_namespace) AS n (namespace)
        CROSS JOIN LATERAL (
            SELECT g.slot, g.process_id
            FROM gated g
            WHERE g.namespace = n.namespace
                AND g.state = 'time'
                AND g.run_at <= v_until
            ORDER BY g.namespace, g.run_at
            LIMIT p_limit
        ) d
    ),
    locked AS (
        SELECT f.*
        FROM processes p
        JOIN found f USING (slot, namespace, process_id)
        ORDER BY p.slot, p.namespace, p.process_id
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
    SELECT array_agg(l.slot), array_agg(l.namespace), array_agg(l.process_id)
    INTO v_slot, v_namespace, v_process_id
    FROM locked l;

    -- A task that needs a locked gate or order must not keep the others waiting.
    WITH item AS (
        SELECT i.slot, i.namespace, i.process_id
        FROM unnest(v_slot, v_namespace, v_process_id) AS i (slot, namespace, process_id)
    ),
    wanted AS MATERIALIZED (
        SELECT i.*, h.gate, NULL AS order_key
        FROM item i
        JOIN gate_holders h USING (slot, namespace, process_id)
        UNION ALL
        SELECT i.*, u.gate, NULL
        FROM item i
        JOIN gated g USING (slot, namespace, process_id)
        CROSS JOIN LATERAL unnest(g.gates) AS u (gate)
        UNION ALL
        SELECT i.*, NULL, g.order_key
        FROM item i
        JOIN gated g USING (slot, namespace, process_id)
        WHERE g.order_key IS NOT NULL
    ),
    free_orders AS MATERIALIZED (
        SELECT o.namespace, o.order_key
        FROM orders o
        JOIN (SELECT DISTINCT w.namespace, w.order_key FROM wanted w) w USING (namespace, order_key)
        FOR NO KEY UPDATE OF o SKIP LOCKED
    ),
    free_gates AS MATERIALIZED (
        SELECT g.namespace, g.gate
        FROM gates g
        JOIN (SELECT DISTINCT w.namespace, w.gate FROM wanted w) w USING (namespace, gate)
        FOR NO KEY UPDATE OF g SKIP LOCKED
    ),
    held AS MATERIALIZED (
        SELECT w.slot, w.namespace, w.process_id
        FROM wanted w
        JOIN orders o USING (namespace, order_key)
        WHERE NOT EXISTS (
            SELECT FROM free_orders f
            WHERE (f.namespace, f.order_key) = (o.namespace, o.order_key)
        )
        UNION
        SELECT w.slot, w.namespace, w.process_id
        FROM wanted w
        JOIN gates g USING (namespace, gate)
        WHERE NOT EXISTS (
            SELECT FROM free_gates f
            WHERE (f.namespace, f.gate) = (g.namespace, g.gate)
        )
    )
    SELECT array_agg(i.slot) FILTER (WHERE h.process_id IS NULL),
        array_agg(i.namespace) FILTER (WHERE h.process_id IS NULL),
        array_agg(i.process_id) FILTER (WHERE h.process_id IS NULL),
        coalesce(bool_or(h.process_id IS NOT NULL), false)
    INTO v_slot, v_namespace, v_process_id, v_is_held
    FROM item i
    LEFT JOIN held h USING (slot, namespace, process_id);

    IF v_slot IS NOT NULL THEN
        effects := settle_gates(
            coalesce(p_now, clock_timestamp()), p_replica_id, p_starvation_timeout, p_limit, v_slot,
            v_namespace, v_process_id);
    END IF;
    SELECT coalesce(effects, '[]') || coalesce(jsonb_agg(jsonb_build_array(
        n.namespace, d.process_id, d.task_id, NULL, NULL, NULL,
        CASE WHEN v_is_held THEN 0.1 ELSE 0 END)), '[]')
    INTO effects
    FROM unnest(p_namespace) AS n (namespace)
    CROSS JOIN LATERAL (
        SELECT g.process_id, g.task_id
        FROM gated g
        WHERE g.namespace = n.namespace
            AND g.state = 'time'
            AND g.run_at <= v_until
        ORDER BY g.namespace, g.run_at
        LIMIT 1
    ) d;
    RETURN NEXT;
END;
$$;
