-- Evicts holders of a gate that holds more than its lowered capacity, at most p_count, that do not run yet:
-- reservations first, then available tasks, the youngest first. Running tasks, and gates that a process holds,
-- stay. It looks at the p_window latest holders that were not looked at yet, so that the cost does not grow with
-- the holders. The gate records the progress, so any replica can continue.
-- Locks: processes of evicted holders, in key order, SKIP LOCKED; then as settle_gates.
-- Returns: how many were evicted, whether that is all, and what settle_gates returns.
CREATE FUNCTION evict_holders(
    LIKE own_arguments,
    p_limit     integer,
    p_count     integer,
    p_window    integer,
    p_namespace text,
    p_gate      text
)
RETURNS TABLE (sent_count integer, is_done boolean, effects jsonb)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now         timestamptz;
    v_gate        gates%ROWTYPE;
    v_count       integer;
    v_window      record;      -- how many were looked at, since when the last one holds the gate, and
                               -- who of them may be evicted, in that order
    v_task        record;
    v_slots       smallint[];  -- processes that are locked
    v_process_ids text[];
    v_orders      text[];
    v_gates       text[];
    v_left        text[] := ARRAY[p_gate];
    v_evicted     process_key[];  -- processes of evicted tasks
    v_alone       task_key[];     -- evicted tasks that are all that their processes have
    v_queues      text[];         -- that these have entered
BEGIN
    sent_count := 0;
    is_done := true;
    SELECT * INTO v_gate FROM gates g WHERE (g.namespace, g.gate) = (p_namespace, p_gate);
    IF v_gate.lowered_at IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_count := least(p_count, v_gate.held - v_gate.capacity);

    WITH looked AS MATERIALIZED (
        SELECT h.slot, h.process_id, h.task_id, h.hold, h.is_reserved, h.held_at
        FROM gate_holders h
        WHERE (h.namespace, h.gate) = (p_namespace, p_gate) AND h.held_at < v_gate.lowered_before
        ORDER BY h.namespace DESC, h.gate DESC, h.held_at DESC
        FETCH FIRST p_window ROWS WITH TIES
    ),
    found AS (
        SELECT l.slot, l.process_id, l.task_id, l.is_reserved,
            row_number() OVER (ORDER BY l.is_reserved DESC, g.ready_at DESC, l.task_id DESC) AS place
        FROM looked l
        CROSS JOIN LATERAL (
            SELECT g.state, g.ready_at
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                = (l.slot, p_namespace, l.process_id, l.task_id)
            OFFSET 0
        ) g
        WHERE l.is_reserved
            OR (l.hold = 'task' AND g.state = 'available' AND (
                SELECT s.task_id
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                    = (l.slot, p_namespace, l.process_id, l.task_id)
            ) IS NOT NULL)
    )
    SELECT w.count, w.since, f.*
    INTO v_window
    FROM (SELECT count(*) AS count, min(l.held_at) AS since FROM looked l) w
    CROSS JOIN (
        SELECT count(*) AS found_count,
            array_agg(c.slot ORDER BY c.place) FILTER (WHERE c.place <= v_count) AS slot,
            array_agg(c.process_id ORDER BY c.place) FILTER (WHERE c.place <= v_count) AS process_id,
            array_agg(c.task_id ORDER BY c.place) FILTER (WHERE c.place <= v_count) AS task_id
        FROM found c
    ) f;

    WITH locked AS (
        SELECT i.slot, i.process_id
        FROM (
            SELECT i.slot, i.process_id
            FROM unnest(v_window.slot, v_window.process_id) AS i (slot, process_id)
            ORDER BY i.slot, i.process_id COLLATE "C"
        ) i
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (i.slot, p_namespace, i.process_id)
            FOR NO KEY UPDATE SKIP LOCKED
        ) p
    )
    SELECT array_agg(l.slot), array_agg(l.process_id)
    INTO v_slots, v_process_ids
    FROM locked l;
    -- Their orders and gates, as settle_gates locks them, in key order with this one.
    SELECT array_agg(DISTINCT g.order_key)
    INTO v_orders
    FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
    CROSS JOIN LATERAL (
        SELECT g.order_key
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id) = (i.slot, p_namespace, i.process_id)
        OFFSET 0
    ) g
    WHERE g.order_key IS NOT NULL;
    SELECT array_agg(n.gate)
    INTO v_gates
    FROM (
        SELECT unnest(g.gates) AS gate
        FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
        CROSS JOIN LATERAL (
            SELECT g.gates
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id) = (i.slot, p_namespace, i.process_id)
            OFFSET 0
        ) g
        UNION
        SELECT h.gate
        FROM unnest(v_slots, v_process_ids) AS i (slot, process_id)
        CROSS JOIN LATERAL (
            SELECT h.gate
            FROM gate_holders h
            WHERE (h.slot, h.namespace, h.process_id) = (i.slot, p_namespace, i.process_id)
            OFFSET 0
        ) h
        UNION
        SELECT p_gate
    ) n;
    PERFORM lock_gates(
        array_fill(p_namespace, ARRAY[coalesce(cardinality(v_orders), 0)]), v_orders,
        array_fill(p_namespace, ARRAY[cardinality(v_gates)]), v_gates);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT * INTO v_gate FROM gates g WHERE (g.namespace, g.gate) = (p_namespace, p_gate);
    IF v_gate.lowered_at IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;

    -- Each is looked at once more: until it was locked it may have begun to run, or have ended.
    FOR v_task IN
        SELECT h.slot, h.process_id, h.task_id, h.is_reserved, NOT h.is_reserved AND (
                SELECT g.order_key IS NULL AND g.task_type NOT IN ('timeout', 'remove')
                    AND (g.run_at <= v_now) IS NOT FALSE AND s.attempt = g.attempt AND s.due_at <= v_now
                FROM find_gated(h.slot, p_namespace, h.process_id, h.task_id) g
                JOIN schedule s USING (slot, namespace, process_id, task_id)
            ) AND NOT EXISTS (
                SELECT FROM gated o
                WHERE (o.slot, o.namespace, o.process_id) = (h.slot, p_namespace, h.process_id)
                    AND o.task_id <> h.task_id
                UNION ALL
                SELECT FROM schedule o
                WHERE (o.slot, o.namespace, o.process_id) = (h.slot, p_namespace, h.process_id)
                    AND o.task_id <> h.task_id
                UNION ALL
                SELECT FROM gate_holders o
                WHERE (o.slot, o.namespace, o.process_id) = (h.slot, p_namespace, h.process_id)
                    AND (o.task_id <> h.task_id OR o.hold <> 'task' OR o.is_reserved)
                UNION ALL
                SELECT FROM running r
                WHERE (r.slot, r.namespace, r.process_id) = (h.slot, p_namespace, h.process_id)
            ) AS is_alone
        FROM unnest(v_window.slot, v_window.process_id, v_window.task_id)
            WITH ORDINALITY AS i (slot, process_id, task_id, place)
        JOIN unnest(v_slots, v_process_ids) AS l (slot, process_id) USING (slot, process_id)
        CROSS JOIN LATERAL (
            -- With the gate in the condition, the index by gates would look as good as the key.
            SELECT h.*
            FROM gate_holders h
            WHERE (h.slot, h.namespace, h.process_id) = (i.slot, p_namespace, i.process_id)
            OFFSET 0
        ) h
        WHERE h.gate = p_gate AND h.task_id = i.task_id AND (h.is_reserved OR (
            h.hold = 'task' AND (
                SELECT s.task_id
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                    = (i.slot, p_namespace, i.process_id, i.task_id)
            ) IS NOT NULL AND (
                SELECT g.state
                FROM gated g
                WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                    = (i.slot, p_namespace, i.process_id, i.task_id)
            ) = 'available'))
        ORDER BY i.place
        LIMIT greatest(v_gate.held - v_gate.capacity, 0)
    LOOP
        sent_count := sent_count + 1;
        IF v_task.is_alone THEN
            v_alone := v_alone
                || (v_task.slot, p_namespace, v_task.process_id, v_task.task_id)::task_key;
            CONTINUE;
        END IF;
        v_left := v_left || release_gates(
            v_task.slot, p_namespace, v_task.process_id, v_task.task_id, v_task.is_reserved);
        CONTINUE WHEN v_task.is_reserved;
        PERFORM dequeue_task(v_now, v_task.slot, p_namespace, v_task.process_id, v_task.task_id);
        PERFORM move_gated(
            v_now, v_task.slot, p_namespace, v_task.process_id, v_task.task_id, 'process');
        v_evicted := v_evicted || (v_task.slot, p_namespace, v_task.process_id)::process_key;
    END LOOP;
    IF v_alone IS NOT NULL THEN
        -- What the loop and settle_gates do for one: they lack nothing but their gates.
        WITH gone AS (
            DELETE FROM gate_holders h USING unnest(v_alone) AS i
            WHERE (h.slot, h.namespace, h.process_id) = (i.slot, i.namespace, i.process_id)
            RETURNING h.gate
        ), freed AS (
            UPDATE gates g SET held = g.held - n.count
            FROM (SELECT o.gate, count(*) AS count FROM gone o GROUP BY o.gate) n
            WHERE (g.namespace, g.gate) = (p_namespace, n.gate)
            RETURNING g.gate
        ), dequeued AS (
            DELETE FROM schedule s USING unnest(v_alone) AS i
            WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                = (i.slot, i.namespace, i.process_id, i.task_id)
        ), moved AS (
            UPDATE gated g
            SET state = 'gates', state_since = greatest(v_now, g.state_since), queue = g.gates::text,
                spent_us = spent_us(v_now, g, (
                    SELECT t.started_at FROM tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (g.slot, g.namespace, g.process_id, g.task_id)))
            FROM unnest(v_alone) AS i
            WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                = (i.slot, i.namespace, i.process_id, i.task_id)
            RETURNING g.queue, g.gates, g.priority, g.task_id, g.ready_at
        ), entered AS (
            INSERT INTO gate_queues (
                namespace, queue, gates, head_priority, head_task_id, oldest_at, oldest_id)
            SELECT DISTINCT ON (m.queue)
                p_namespace, m.queue, m.gates, m.priority, m.task_id, m.ready_at, m.task_id
            FROM moved m
            ON CONFLICT DO NOTHING
        )
        SELECT v_left || ARRAY(SELECT f.gate FROM freed f), ARRAY(SELECT DISTINCT m.queue FROM moved m)
        INTO v_left, v_queues;
        PERFORM refresh_gate_queue(p_namespace, q.queue) FROM unnest(v_queues) AS q (queue);
    END IF;
    SELECT * INTO v_gate FROM gates g WHERE (g.namespace, g.gate) = (p_namespace, p_gate);

    IF v_gate.held > v_gate.capacity THEN
        is_done := false;
        -- More of these were found than were taken or could be locked: the next call finds them again.
        IF v_window.found_count = coalesce(cardinality(v_slots), 0) THEN
            is_done := v_window.count < p_window;
            v_gate.lowered_before := v_window.since;
        END IF;
    END IF;
    UPDATE gates g
    SET lowered_at = CASE WHEN NOT is_done THEN v_now END,
        lowered_before = CASE WHEN NOT is_done THEN v_gate.lowered_before END
    WHERE (g.namespace, g.gate) = (p_namespace, p_gate);
    -- Evicted tasks wait for their gates again. They take part in the same promotion as the tasks that waited for
    -- the released gates: in a promotion of their own they would pass before these.
    effects := settle_gates(
        v_now, p_replica_id, p_starvation_timeout, p_limit, v_evicted,
        p_named_in => p_namespace, p_left => v_left, p_queue => ARRAY(
            SELECT l.queue
            FROM gate_queues l
            WHERE l.namespace = p_namespace AND l.queue = ANY (v_queues) AND l.waits_on IS NULL));
    RETURN NEXT;
END;
$$;
