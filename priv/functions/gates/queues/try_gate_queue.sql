-- Promotes the head of a queue, if all its gates have a free place: the oldest of the tasks that have waited for
-- longer than p_starvation_timeout, or else the oldest of the highest priority.
--
-- An aged task that meets a full gate reserves the gates before that one, in key order. Tasks that want fewer gates
-- then cannot starve it, and the order prevents deadlocks between two such tasks. It also enters the queue of its
-- process while that runs a step, before all younger tasks.
-- Locks: the gates of the queue that the caller has not locked, the process of the task, its order, and the gates
-- of tasks in the queue of the process: all with SKIP LOCKED, since the caller holds locks that come after them.
-- Returns: the task that was tried, and the result.
--   promoted  the task is in schedule and due, its gates are held
--   passed    the head has left the queue, since it waits for something else, or the queue is empty: look again
--   blocked   a gate is full: the queue waits for it
--   again     the task's process or a gate is locked: try again in another transaction
-- freed: gates released here, whose queues must be looked at. orders: locked orders, to be looked at again.
CREATE FUNCTION try_gate_queue(
    LIKE own_arguments,
    p_namespace text,
    p_queue     text,
    OUT verdict    text,
    OUT slot       smallint,
    OUT process_id text,
    OUT task_id    bigint,
    OUT waits_on   text,
    OUT freed      text[],
    OUT orders     text[]
)
AS $$
DECLARE
    v_task     gated%ROWTYPE;
    v_is_old   boolean := true;
    v_next     gated_state;
    v_gates    text[];
    v_waits_on text;
    v_behind   bigint;
    v_result   record;
    v_gate     text;
    v_place    record;
    v_taken    text[] := '{}';
BEGIN
    SELECT l.gates, l.waits_on
    INTO v_gates, v_waits_on
    FROM gate_queues l
    WHERE (l.namespace, l.queue) = (p_namespace, p_queue);
    IF NOT FOUND THEN
        verdict := 'passed';
        RETURN;
    END IF;
    -- All before anything is looked at: who comes into the queue, leaves it or reserves holds its gates.
    FOREACH v_gate IN ARRAY v_gates LOOP
        PERFORM
        FROM gates g
        WHERE (g.namespace, g.gate) = (p_namespace, v_gate)
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            verdict := 'again';
            RETURN;
        END IF;
    END LOOP;

    SELECT *
    INTO v_task
    FROM gated g
    WHERE (g.namespace, g.queue) = (p_namespace, p_queue)
        AND g.ready_at <= p_now - make_interval(secs => p_starvation_timeout)
    ORDER BY g.namespace, g.queue, g.ready_at, g.task_id
    LIMIT 1;
    IF NOT FOUND THEN
        v_is_old := false;
        SELECT *
        INTO v_task
        FROM gated g
        WHERE (g.namespace, g.queue) = (p_namespace, p_queue)
        ORDER BY g.namespace, g.queue, g.priority, g.task_id
        LIMIT 1;
    END IF;
    IF v_task.task_id IS NULL THEN
        PERFORM refresh_gate_queue(p_namespace, p_queue);
        verdict := 'passed';
        RETURN;
    END IF;
    slot := v_task.slot;
    process_id := v_task.process_id;
    task_id := v_task.task_id;

    PERFORM
    FROM processes p
    WHERE (p.slot, p.namespace, p.process_id) = (v_task.slot, v_task.namespace, v_task.process_id)
    FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND AND v_task.order_key IS NOT NULL THEN
        -- Otherwise a smaller version could end unseen, and the tasks waiting for it would not be checked.
        PERFORM
        FROM orders o
        WHERE (o.namespace, o.order_key) = (p_namespace, v_task.order_key)
        FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        verdict := 'again';
        RETURN;
    END IF;

    IF NOT lock_gates_of_queued(v_task.slot, v_task.namespace, v_task.process_id) THEN
        verdict := 'again';
        RETURN;
    END IF;

    v_next := find_gated_cause(
        p_now, v_task.slot, v_task.namespace, v_task.process_id, v_task.task_id, v_is_old);
    IF v_next <> 'gates' THEN
        freed := release_gates(
            v_task.slot, v_task.namespace, v_task.process_id, v_task.task_id, p_only_reserved => true);
        PERFORM move_gated(
            p_now, v_task.slot, v_task.namespace, v_task.process_id, v_task.task_id, v_next);
        -- Who stood behind it for the same gates comes to the queue in its stead.
        WHILE v_next = 'order' LOOP
            SELECT g.task_id
            INTO v_behind
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id, g.state, g.gates)
                    = (v_task.slot, v_task.namespace, v_task.process_id, 'process', v_task.gates)
                AND g.task_type NOT IN ('timeout', 'remove')
            ORDER BY g.slot, g.namespace, g.process_id, g.state, g.gates, g.task_id
            LIMIT 1;
            EXIT WHEN NOT FOUND;
            v_result := reevaluate_task(
                p_now, p_replica_id, v_task.slot, v_task.namespace, v_task.process_id, v_behind);
            IF v_result.order_key IS NOT NULL THEN
                orders := orders || v_result.order_key;
            END IF;
            v_next := v_result.state;
        END LOOP;
        UPDATE gate_queues l
        SET waits_on = v_waits_on
        WHERE (l.namespace, l.queue) = (p_namespace, p_queue) AND l.waits_on IS NULL;
        verdict := 'passed';
        RETURN;
    END IF;

    IF v_is_old THEN
        -- One of this queue that was the oldest before has reserved for all of it.
        UPDATE gate_holders h
        SET slot = v_task.slot, process_id = v_task.process_id, task_id = v_task.task_id,
            hold = v_task.hold
        FROM gated o
        WHERE h.namespace = p_namespace
            AND h.gate = ANY (v_gates)
            AND h.is_reserved
            AND (o.slot, o.namespace, o.process_id, o.task_id)
                = (h.slot, h.namespace, h.process_id, h.task_id)
            AND o.queue = p_queue
            AND o.task_id <> v_task.task_id
            AND NOT EXISTS (
                SELECT
                FROM gate_holders own
                WHERE (own.slot, own.namespace, own.process_id, own.gate)
                    = (v_task.slot, v_task.namespace, v_task.process_id, h.gate)
            );
    END IF;

    FOREACH v_gate IN ARRAY v_gates LOOP
        CONTINUE WHEN EXISTS (
            SELECT
            FROM gate_holders h
            WHERE (h.slot, h.namespace, h.process_id, h.gate)
                = (v_task.slot, v_task.namespace, v_task.process_id, v_gate)
        );
        SELECT g.capacity, g.held
        INTO v_place
        FROM gates g
        WHERE (g.namespace, g.gate) = (p_namespace, v_gate);
        IF v_place.held >= v_place.capacity THEN
            waits_on := v_gate;
            EXIT;
        END IF;
        v_taken := v_taken || v_gate;
    END LOOP;

    IF waits_on IS NULL OR (v_is_old AND v_taken <> '{}') THEN
        INSERT INTO gate_holders (
            slot, namespace, process_id, gate, task_id, hold, is_reserved, held_at
        )
        SELECT v_task.slot, v_task.namespace, v_task.process_id, t.gate, v_task.task_id, v_task.hold,
            waits_on IS NOT NULL, p_now
        FROM unnest(v_taken) AS t (gate);
        UPDATE gates g
        SET held = g.held + 1
        WHERE g.namespace = p_namespace AND g.gate = ANY (v_taken);
    END IF;

    IF waits_on IS NOT NULL THEN
        UPDATE gate_queues l
        SET waits_on = try_gate_queue.waits_on
        WHERE (l.namespace, l.queue) = (p_namespace, p_queue)
            AND l.waits_on IS DISTINCT FROM try_gate_queue.waits_on;
        verdict := 'blocked';
        RETURN;
    END IF;

    -- Also what another task of the process has reserved: it cannot run before this one has ended. What
    -- another one holds goes over to this one when that ends (release_gates).
    UPDATE gate_holders h
    SET task_id = CASE WHEN h.is_reserved THEN v_task.task_id ELSE h.task_id END,
        hold = CASE WHEN h.is_reserved THEN v_task.hold ELSE greatest(h.hold, v_task.hold) END,
        is_reserved = false
    WHERE (h.slot, h.namespace, h.process_id) = (v_task.slot, v_task.namespace, v_task.process_id)
        AND h.gate = ANY (v_task.gates)
        AND (h.is_reserved OR h.hold < v_task.hold);
    freed := enqueue_task(p_now, p_replica_id, v_task);
    verdict := 'promoted';
END;
$$;
