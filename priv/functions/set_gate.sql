-- Sets the capacity of a gate, which is made where it is not there. Where that is more, who waits for it
-- is promoted. Where it is less than what is held, those give way who do not run yet, until it fits:
-- first who has reserved it, then available tasks, the youngest first. What runs, and what a process
-- holds, keeps it.
-- p_revision: only if the gate is at that one; 0: whatever it is at, or makes it.
-- Locks: processes of holders, in key order; then as settle_gates.
-- Returns: first the gate as it is now (verdict changed, or not_found and revision_changed, which change
-- nothing), then as settle_gates.
CREATE FUNCTION set_gate(
    p_now        timestamptz,
    p_replica_id bigint,
    p_patience   double precision,
    p_limit      integer,
    p_namespace  text,
    p_gate       text,
    p_capacity   integer,
    p_revision   bigint
)
RETURNS TABLE (
    verdict text, capacity integer, held integer, revision bigint, created_at timestamptz,
    updated_at timestamptz, slot smallint, process_id text, task_id bigint, gate text, line text,
    order_key text, wait_seconds double precision, due_seconds double precision
)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    v_now         timestamptz;
    v_gate        gates%ROWTYPE;
    v_held        integer;
    v_task        record;
    v_freed       text[];
    v_left        text[] := ARRAY[p_gate];
    v_slots       smallint[];
    v_process_ids text[];
    v_orders      text[];
    v_gates       text[];
    v_left_slots  smallint[];  -- processes of which a task gives way
    v_left_ids    text[];
BEGIN
    -- Who may have to give way. Who comes to hold it from now on keeps it.
    SELECT array_agg(l.slot), array_agg(l.process_id)
    INTO v_slots, v_process_ids
    FROM (
        SELECT p.slot, p.process_id
        FROM processes p
        JOIN (
            SELECT h.slot, h.namespace, h.process_id
            FROM gate_holders h
            JOIN gates g USING (namespace, gate)
            WHERE (h.namespace, h.gate) = (p_namespace, p_gate)
                AND g.held > p_capacity
            ORDER BY h.held_at DESC
            LIMIT 1000
        ) i USING (slot, namespace, process_id)
        ORDER BY p.slot, p.namespace, p.process_id
        FOR NO KEY UPDATE OF p
    ) l;

    IF p_revision = 0 THEN
        INSERT INTO gates (namespace, gate, capacity, created_at, updated_at, revision)
        SELECT p_namespace, p_gate, p_capacity, n.at, n.at, 0
        FROM (SELECT coalesce(p_now, clock_timestamp()) AS at) n
        ON CONFLICT DO NOTHING;
    END IF;
    -- Their orders and gates, as settle_gates locks them, in key order with this one.
    SELECT array_agg(DISTINCT g.order_key)
    INTO v_orders
    FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
    JOIN gated g
        ON (g.slot, g.namespace, g.process_id) = (i.slot, p_namespace, i.process_id)
    WHERE g.order_key IS NOT NULL;
    SELECT array_agg(n.gate)
    INTO v_gates
    FROM (
        SELECT unnest(g.gates) AS gate
        FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
        JOIN gated g
            ON (g.slot, g.namespace, g.process_id) = (i.slot, p_namespace, i.process_id)
        UNION
        SELECT h.gate
        FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
        JOIN gate_holders h
            ON (h.slot, h.namespace, h.process_id) = (i.slot, p_namespace, i.process_id)
    ) n;
    v_gates := v_gates || p_gate;
    PERFORM lock_gates(
        array_fill(p_namespace, ARRAY[coalesce(cardinality(v_orders), 0)]), v_orders,
        array_fill(p_namespace, ARRAY[cardinality(v_gates)]), v_gates);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT * INTO v_gate FROM gates g WHERE (g.namespace, g.gate) = (p_namespace, p_gate);
    IF NOT FOUND THEN
        verdict := 'not_found';
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_revision <> 0 AND v_gate.revision <> p_revision THEN
        verdict := 'revision_changed';
        capacity := v_gate.capacity;
        revision := v_gate.revision;
        RETURN NEXT;
        RETURN;
    END IF;

    v_held := v_gate.held;
    WHILE v_held > p_capacity LOOP
        -- One after the other: what one gives back, another of its process may go on with.
        SELECT g.slot, g.process_id, g.task_id, h.is_reserved
        INTO v_task
        FROM gate_holders h
        JOIN gated g USING (slot, namespace, process_id, task_id)
        LEFT JOIN schedule s USING (slot, namespace, process_id, task_id)
        WHERE (h.namespace, h.gate) = (p_namespace, p_gate)
            AND (h.slot, h.process_id) IN (
                SELECT i.slot, i.process_id
                FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
            )
            AND (h.is_reserved
                OR (h.hold = 'task' AND g.state = 'available' AND s.task_id IS NOT NULL))
        ORDER BY h.is_reserved DESC, g.ripe_at DESC, g.task_id DESC
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_freed := give_back_gates(
            v_task.slot, p_namespace, v_task.process_id, v_task.task_id, v_task.is_reserved);
        v_left := v_left || v_freed;
        v_held := v_held - coalesce(p_gate = ANY (v_freed), false)::integer;
        CONTINUE WHEN v_task.is_reserved;
        PERFORM leave_line(
            v_now, v_task.slot, p_namespace, v_task.process_id, v_task.task_id);
        PERFORM move_gated(
            v_now, v_task.slot, p_namespace, v_task.process_id, v_task.task_id, 'process');
        v_left_slots := v_left_slots || v_task.slot;
        v_left_ids := v_left_ids || v_task.process_id;
    END LOOP;

    UPDATE gates g
    SET capacity = p_capacity, revision = g.revision + 1, updated_at = v_now
    WHERE (g.namespace, g.gate) = (p_namespace, p_gate)
    RETURNING 'changed', g.capacity, g.held, g.revision, g.created_at, g.updated_at
    INTO verdict, capacity, held, revision, created_at, updated_at;
    RETURN NEXT;
    -- Who gave way comes to wait for its gates, and who waited behind it is next. They pass in the same
    -- promotion as those who waited for what was left: in one of their own they would go before these.
    RETURN QUERY
    SELECT NULL::text, NULL::integer, NULL::integer, NULL::bigint, NULL::timestamptz,
        NULL::timestamptz, g.slot, g.process_id, g.task_id, g.gate, g.line, g.order_key,
        g.wait_seconds, g.due_seconds
    FROM settle_gates(
        v_now, p_replica_id, p_patience, p_limit, v_left_slots,
        array_fill(p_namespace, ARRAY[coalesce(cardinality(v_left_slots), 0)]), v_left_ids,
        p_left_namespace => array_fill(p_namespace, ARRAY[cardinality(v_left)]),
        p_left => v_left) g;
END;
$$;
