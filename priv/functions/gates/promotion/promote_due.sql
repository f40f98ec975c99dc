-- Promotes tasks with constraints whose instant has come, in the given namespaces, at most p_limit in each.
-- Locks: processes in key order, and the orders and gates of these, all with SKIP LOCKED; then as settle_gates.
-- Returns: effects, as settle_gates; and with a wait_seconds of 0, one task of each namespace that has more: those
-- beyond the limit, and those whose process was locked. It is 0.1 where an order or a gate was locked.
CREATE FUNCTION promote_due(
    LIKE own_arguments,
    p_limit     integer,
    p_overdue   double precision,
    p_namespace text[]
)
RETURNS TABLE (effects jsonb)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_until timestamptz := coalesce(p_now, clock_timestamp()) - make_interval(secs => p_overdue);
    v_key   process_key[];
    v_held  integer[];  -- items
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
        FROM (
            SELECT f.*
            FROM found f
            ORDER BY f.slot, f.namespace, f.process_id
        ) f
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (f.slot, f.namespace, f.process_id)
            FOR NO KEY UPDATE SKIP LOCKED
        ) p
    )
    SELECT array_agg((l.slot, l.namespace, l.process_id)::process_key)
    INTO v_key
    FROM locked l;

    -- A task that needs a locked gate or order must not keep the others waiting.
    v_held := ARRAY(SELECT h.item FROM find_held(v_key) h);
    SELECT array_agg((i.slot, i.namespace, i.process_id)::process_key)
    INTO v_key
    FROM unnest(v_key) WITH ORDINALITY AS i (slot, namespace, process_id, item)
    WHERE i.item <> ALL (v_held);

    IF v_key IS NOT NULL THEN
        effects := settle_gates(
            coalesce(p_now, clock_timestamp()), p_replica_id, p_starvation_timeout, p_limit, v_key);
    END IF;
    SELECT coalesce(effects, '[]') || coalesce(jsonb_agg(jsonb_build_array(
        n.namespace, d.process_id, d.task_id, NULL, NULL, NULL,
        CASE WHEN v_held <> '{}' THEN 0.1 ELSE 0 END)), '[]')
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
