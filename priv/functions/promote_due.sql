-- Looks at tasks with constraints whose instant has come, of some namespaces, at most p_limit of each.
-- Locks: processes in key order, SKIP LOCKED; then as settle_gates.
-- Returns: as settle_gates; and with a wait_seconds of 0, one task of each namespace that has more: those
-- beyond the limit, and those whose process somebody had locked.
CREATE FUNCTION promote_due(
    p_now        timestamptz,
    p_replica_id bigint,
    p_patience   double precision,
    p_limit      integer,
    p_overdue    double precision,
    p_namespace  text[]
)
RETURNS TABLE (
    slot smallint, namespace text, process_id text, task_id bigint, gate text, line text,
    order_key text, wait_seconds double precision, due_seconds double precision
)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET lock_timeout = '300ms'
AS $$
#variable_conflict use_column
DECLARE
    v_until      timestamptz
        := coalesce(p_now, clock_timestamp()) - make_interval(secs => p_overdue);
    v_slot       smallint[];
    v_namespace  text[];
    v_process_id text[];
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
    IF v_slot IS NOT NULL THEN
        RETURN QUERY
        SELECT *
        FROM settle_gates(
            coalesce(p_now, clock_timestamp()), p_replica_id, p_patience, p_limit, v_slot,
            v_namespace, v_process_id);
    END IF;
    RETURN QUERY
    SELECT d.slot, n.namespace, d.process_id, d.task_id, NULL::text, NULL::text, NULL::text,
        0::double precision, NULL::double precision
    FROM unnest(p_namespace) AS n (namespace)
    CROSS JOIN LATERAL (
        SELECT g.slot, g.process_id, g.task_id
        FROM gated g
        WHERE g.namespace = n.namespace
            AND g.state = 'time'
            AND g.run_at <= v_until
        ORDER BY g.namespace, g.run_at
        LIMIT 1
    ) d;
END;
$$;
