-- Applies the gate effects of a change to gated processes, at the end of each transaction that makes one: tasks that
-- have ended leave their gates and orders; a task that waits for its retry leaves them until then; an available
-- task behind another steps back; on a process in error, all but the task that broke it leave their gates and stay
-- in their orders; tasks that waited for the process are evaluated again. Then the next tasks for the freed gates
-- and orders are promoted, on any process.
-- p_task_id, beside its process: a task that waited and has ended, or is new; null: none. p_moved: orders in which
-- a task has ended; p_left: gates that were left; p_queue: queues to be checked; all of the namespace p_named_in.
-- Locks: orders and gates of these processes, in key order; then as promote_gates. The caller has locked the
-- processes.
-- Returns: [[namespace, process_id, task_id, gate, queue, order_key, wait_seconds, due_seconds, awaited_by, sends], ...]: tasks
-- that are due now, or in due_seconds; with wait_seconds, the first task of each process for promote_due; without a
-- task, the gate, queue or order for promote_again; with awaited_by (describe_ends), the init task of a process that has
-- ended, and the replicas that wait for that. Nulls at the end are left out. Null: nothing.
CREATE FUNCTION settle_gates(
    LIKE own_arguments,
    p_limit    integer,
    p_key      process_key[],
    p_task_id  bigint[] DEFAULT NULL,
    p_named_in text DEFAULT NULL,
    p_moved    text[] DEFAULT NULL,
    p_left     text[] DEFAULT NULL,
    p_queue    text[] DEFAULT NULL
)
RETURNS jsonb
AS $$
DECLARE
    v_effects      jsonb[];
    v_processes    process_key[];  -- each once
    v_tasks        task_key[];     -- at hand
    v_orders       text[];
    v_order_spaces text[];
    v_gates        text[];
    v_gate_spaces  text[];
    v_moved        text[] := p_moved;  -- orders in which a task has ended, with their namespaces
    v_moved_spaces text[] := array_fill(p_named_in, ARRAY[coalesce(cardinality(p_moved), 0)]);
    v_left         text[] := p_left;   -- gates given back, likewise
    v_left_spaces  text[] := array_fill(p_named_in, ARRAY[coalesce(cardinality(p_left), 0)]);
    v_queues       text[] := p_queue;  -- queues to be looked at, likewise
    v_queue_spaces text[] := array_fill(p_named_in, ARRAY[coalesce(cardinality(p_queue), 0)]);
    v_freed        text[];
    v_process      record;
    v_task         record;
    v_result       record;
    v_next         bigint;
    v_count        integer := 0;
    v_is_again     boolean;
    v_status       process_status;
    v_broken_by    bigint;
    v_first        schedule%ROWTYPE;
BEGIN
    FOR v_process IN
        SELECT i.slot, i.namespace, i.process_id,
            array_agg(i.task_id) FILTER (WHERE i.task_id IS NOT NULL) AS named
        FROM unnest(p_key, p_task_id) AS i (slot, namespace, process_id, task_id)
        GROUP BY i.slot, i.namespace, i.process_id
    LOOP
        v_processes := v_processes
            || (v_process.slot, v_process.namespace, v_process.process_id)::process_key;
        v_tasks := v_tasks || ARRAY(
            SELECT (v_process.slot, v_process.namespace, v_process.process_id, f.id)::task_key
            FROM unnest(find_affected_tasks(
                p_now, p_limit, v_process.slot, v_process.namespace, v_process.process_id,
                v_process.named)) AS f (id));
    END LOOP;

    SELECT array_agg(n.namespace), array_agg(n.order_key)
    INTO v_order_spaces, v_orders
    FROM (
        SELECT g.namespace, g.order_key
        FROM unnest(v_tasks) AS i
        CROSS JOIN LATERAL find_gated(i.slot, i.namespace, i.process_id, i.task_id) g
        WHERE g.order_key IS NOT NULL
        UNION
        SELECT m.namespace, m.order_key
        FROM unnest(v_moved_spaces, v_moved) AS m (namespace, order_key)
    ) n;
    SELECT array_agg(n.namespace), array_agg(n.gate)
    INTO v_gate_spaces, v_gates
    FROM (
        SELECT g.namespace, unnest(g.gates) AS gate
        FROM unnest(v_tasks) AS i
        CROSS JOIN LATERAL find_gated(i.slot, i.namespace, i.process_id, i.task_id) g
        UNION
        SELECT h.namespace, h.gate
        FROM unnest(v_processes) AS i
        JOIN gate_holders h USING (slot, namespace, process_id)
    ) n;
    PERFORM lock_gates(v_order_spaces, v_orders, v_gate_spaces, v_gates);

    FOREACH v_process IN ARRAY coalesce(v_processes, '{}') LOOP
        v_freed := NULL;
        SELECT p.status, p.corrupted_by
        INTO v_status, v_broken_by
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id)
            = (v_process.slot, v_process.namespace, v_process.process_id);
        FOR v_task IN
            SELECT g.task_id, g.state, g.order_key, g.attempt, t.status AS task_status,
                s.attempt AS attempts_made, s.due_at
            FROM unnest(v_tasks) AS i
            CROSS JOIN LATERAL find_gated(i.slot, i.namespace, i.process_id, i.task_id) g
            LEFT JOIN LATERAL (
                SELECT t.status
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (i.slot, i.namespace, i.process_id, i.task_id)
                OFFSET 0
            ) t ON true
            LEFT JOIN LATERAL (
                SELECT s.attempt, s.due_at
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                    = (i.slot, i.namespace, i.process_id, i.task_id)
                OFFSET 0
            ) s ON true
            WHERE (i.slot, i.namespace, i.process_id)
                = (v_process.slot, v_process.namespace, v_process.process_id)
            ORDER BY g.task_id
        LOOP
            IF v_task.task_status IS NULL
                OR v_task.task_status IN ('finished', 'error', 'cancelled') THEN
                v_freed := v_freed || end_gated(
                    p_now, v_process.slot, v_process.namespace, v_process.process_id,
                    v_task.task_id);
                IF v_task.order_key IS NOT NULL THEN
                    v_moved := v_moved || v_task.order_key;
                    v_moved_spaces := v_moved_spaces || v_process.namespace;
                END IF;
            ELSIF v_task.state IN ('gates', 'available')
                AND v_status = 'error'
                AND v_task.task_id IS DISTINCT FROM v_broken_by
            THEN
                v_freed := v_freed || release_gates(
                    v_process.slot, v_process.namespace, v_process.process_id, v_task.task_id);
                PERFORM move_gated(
                    p_now, v_process.slot, v_process.namespace, v_process.process_id,
                    v_task.task_id, 'process');
            ELSIF v_task.state = 'available'
                AND (v_task.attempts_made > v_task.attempt OR v_task.due_at > p_now) THEN
                UPDATE gated g
                SET attempt = v_task.attempts_made, run_at = v_task.due_at
                WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                    = (v_process.slot, v_process.namespace, v_process.process_id, v_task.task_id);
                v_freed := v_freed || release_gates(
                    v_process.slot, v_process.namespace, v_process.process_id, v_task.task_id);
                PERFORM dequeue_task(
                    p_now, v_process.slot, v_process.namespace, v_process.process_id,
                    v_task.task_id);
                PERFORM move_gated(
                    p_now, v_process.slot, v_process.namespace, v_process.process_id,
                    v_task.task_id,
                    CASE WHEN v_task.due_at > p_now THEN 'time' ELSE 'process' END::gated_state);
            END IF;
        END LOOP;

        IF v_status IS NULL OR v_status IN ('error', 'finished') THEN
            v_freed := v_freed || release_gates(
                v_process.slot, v_process.namespace, v_process.process_id, NULL);
        END IF;

        PERFORM enqueue_first_task(p_now, v_process.slot, v_process.namespace, v_process.process_id);
        v_freed := v_freed || release_overtaken_tasks(
            p_now, v_process.slot, v_process.namespace, v_process.process_id);

        FOR v_task IN
            SELECT g.task_id, g.state, g.gates, g.order_key
            FROM unnest(v_tasks) AS i
            CROSS JOIN LATERAL find_gated(i.slot, i.namespace, i.process_id, i.task_id) g
            WHERE (i.slot, i.namespace, i.process_id)
                    = (v_process.slot, v_process.namespace, v_process.process_id)
                AND g.state <> 'available'
            ORDER BY g.task_id
        LOOP
            IF v_task.state = 'gates' THEN
                -- It is queued for what its process holds for good by now.
                CONTINUE WHEN NOT EXISTS (
                    SELECT
                    FROM gate_holders h
                    JOIN gated g USING (slot, namespace, process_id)
                    WHERE (h.slot, h.namespace, h.process_id)
                            = (v_process.slot, v_process.namespace, v_process.process_id)
                        AND g.task_id = v_task.task_id
                        AND h.gate = ANY (g.queue::text[])
                        AND h.hold = 'process'
                        AND NOT h.is_reserved
                );
                v_freed := v_freed || release_gates(
                    v_process.slot, v_process.namespace, v_process.process_id, v_task.task_id,
                    p_only_reserved => true);
                PERFORM move_gated(
                    p_now, v_process.slot, v_process.namespace, v_process.process_id,
                    v_task.task_id, 'process');
            END IF;
            v_next := v_task.task_id;
            -- Where it turns out to wait for its order, who is next of its set is as good.
            WHILE v_next IS NOT NULL LOOP
                v_result := reevaluate_task(
                    p_now, p_replica_id, v_process.slot, v_process.namespace,
                    v_process.process_id, v_next);
                v_freed := v_freed || v_result.freed;
                IF v_result.queue IS NOT NULL THEN
                    v_queues := v_queues || v_result.queue;
                    v_queue_spaces := v_queue_spaces || v_process.namespace;
                END IF;
                IF v_result.again THEN
                    -- Its gates are locked.
                    ASSERT v_result.order_key IS NOT NULL, 'neither its gates nor its order';
                    v_effects := array_append(v_effects, jsonb_build_array(
                        v_process.namespace, NULL, NULL, NULL, NULL, v_result.order_key));
                END IF;
                v_next := NULL;
                IF v_result.state = 'order' THEN
                    SELECT g.task_id
                    INTO v_next
                    FROM gated g
                    WHERE (g.slot, g.namespace, g.process_id, g.state, g.gates)
                        = (v_process.slot, v_process.namespace, v_process.process_id, 'process',
                            v_task.gates)
                        AND g.task_type NOT IN ('timeout', 'remove')
                    ORDER BY g.slot, g.namespace, g.process_id, g.state, g.gates, g.task_id
                    LIMIT 1;
                END IF;
            END LOOP;
        END LOOP;
        v_left := v_left || v_freed;
        v_left_spaces := v_left_spaces
            || array_fill(v_process.namespace, ARRAY[coalesce(cardinality(v_freed), 0)]);
    END LOOP;

    -- Those that an order kept: the smallest version of each. More than the limit are for another
    -- transaction.
    FOR v_task IN
        SELECT o.namespace, o.order_key, g.slot, g.process_id, g.task_id
        FROM (
            SELECT DISTINCT m.namespace, m.order_key
            FROM unnest(v_moved_spaces, v_moved) AS m (namespace, order_key)
        ) o
        CROSS JOIN LATERAL (
            SELECT f.order_version
            FROM gated f
            WHERE (f.namespace, f.order_key) = (o.namespace, o.order_key)
            ORDER BY f.namespace, f.order_key, f.order_version
            LIMIT 1
        ) f
        JOIN gated g ON (g.namespace, g.order_key, g.order_version)
            = (o.namespace, o.order_key, f.order_version)
        WHERE g.state = 'order'
        ORDER BY g.priority, g.task_id
        LIMIT p_limit + 1
    LOOP
        v_count := v_count + 1;
        PERFORM
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id)
                = (v_task.slot, v_task.namespace, v_task.process_id)
            AND v_count <= p_limit
        FOR NO KEY UPDATE SKIP LOCKED;
        -- A record that nothing was assigned to yet must not even be looked at.
        v_is_again := true;
        IF FOUND THEN
            v_result := reevaluate_task(
                p_now, p_replica_id, v_task.slot, v_task.namespace, v_task.process_id,
                v_task.task_id);
            v_left := v_left || v_result.freed;
            v_left_spaces := v_left_spaces || array_fill(
                v_task.namespace, ARRAY[coalesce(cardinality(v_result.freed), 0)]);
            v_is_again := v_result.again;
        END IF;
        IF v_is_again THEN
            v_effects := array_append(v_effects, jsonb_build_array(
                v_task.namespace, NULL, NULL, NULL, NULL, v_task.order_key));
        ELSIF v_result.queue IS NOT NULL THEN
            v_queues := v_queues || v_result.queue;
            v_queue_spaces := v_queue_spaces || v_task.namespace;
        ELSIF v_result.state = 'available' THEN
            v_effects := array_append(v_effects, jsonb_build_array(
                v_task.namespace, v_task.process_id, v_task.task_id));
        END IF;
    END LOOP;

    -- The next task to enter an order creates it again.
    IF cardinality(v_moved) > 0 THEN
        DELETE FROM orders o
        USING (
            SELECT f.row_id
            FROM (
                SELECT DISTINCT m.namespace, m.order_key
                FROM unnest(v_moved_spaces, v_moved) AS m (namespace, order_key)
            ) m
            CROSS JOIN LATERAL (
                SELECT o.ctid AS row_id
                FROM orders o
                WHERE (o.namespace, o.order_key) = (m.namespace, m.order_key)
                OFFSET 0
            ) f
            WHERE (
                SELECT g.task_id
                FROM gated g
                WHERE (g.namespace, g.order_key) = (m.namespace, m.order_key)
                ORDER BY g.namespace, g.order_key, g.order_version
                LIMIT 1
            ) IS NULL
        ) i
        WHERE o.ctid = i.row_id;
    END IF;

    v_effects := v_effects || promote_gates(
        p_now, p_replica_id, p_starvation_timeout, p_limit, v_left_spaces, v_left, v_queue_spaces,
        v_queues);

    FOREACH v_process IN ARRAY coalesce(v_processes, '{}') LOOP
        UPDATE processes p
        SET is_gated = NOT p.is_gated
        WHERE (p.slot, p.namespace, p.process_id)
                = (v_process.slot, v_process.namespace, v_process.process_id)
            AND p.is_gated <> (EXISTS (
                SELECT
                FROM gated g
                WHERE (g.slot, g.namespace, g.process_id)
                    = (v_process.slot, v_process.namespace, v_process.process_id)
            ) OR EXISTS (
                SELECT
                FROM gate_holders h
                WHERE (h.slot, h.namespace, h.process_id)
                    = (v_process.slot, v_process.namespace, v_process.process_id)
            ) OR EXISTS (
                SELECT
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (v_process.slot, v_process.namespace, v_process.process_id,
                            p.corrupted_by)
                    AND t.task_type IN ('timeout', 'remove')
                    AND t.constraints IS NOT NULL
            ));
        -- The worker did not continue with the next task of the process. And a timer that wakes because
        -- no call is before it any more may be unknown to the replicas: while calls were before it, its
        -- instant was not returned.
        v_first := find_first_task(v_process.slot, v_process.namespace, v_process.process_id);
        IF v_first.due_at IS NOT NULL AND v_first.status = 'waiting' THEN
            v_effects := array_append(v_effects, jsonb_build_array(
                v_process.namespace, v_process.process_id, v_first.task_id, NULL, NULL, NULL, NULL,
                nullif(greatest(extract(epoch FROM v_first.due_at - p_now), 0), 0)));
        END IF;
        v_effects := v_effects || ARRAY(
            SELECT jsonb_build_array(
                g.namespace, g.process_id, g.task_id, NULL, NULL, NULL,
                extract(epoch FROM g.run_at - p_now)::double precision)
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id)
                    = (v_process.slot, v_process.namespace, v_process.process_id)
                AND g.state = 'time'
            ORDER BY g.slot, g.namespace, g.process_id, g.run_at
            LIMIT 1);
    END LOOP;
    RETURN to_jsonb(nullif(v_effects, '{}'));
END;
$$;
