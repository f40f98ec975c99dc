-- Determines again what a task with constraints waits for, and moves it there: into the queue for the gates that its
-- process does not hold permanently, or to available if there are none. A task in a queue or available stays.
-- Locks: with SKIP LOCKED, its order, once run_at has passed; the first gate that it lacks, if it enters a queue;
-- and, if it passes, the gates of the tasks in the queue of its process. The caller has locked its process.
-- Returns: the queue to look at now; the gates released by tasks that it was put before; and "again" if a row that
-- it had to lock was locked: if that was its order (order_key), the task now waits for it, and is found when the
-- order is looked at; otherwise nothing was done.
CREATE FUNCTION reevaluate_task(
    p_now        timestamptz,
    p_replica_id bigint,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_task_id    bigint,
    OUT state     gated_state,
    OUT queue     text,
    OUT freed     text[],
    OUT again     boolean,
    OUT order_key text
)
AS $$
DECLARE
    v_task  gated%ROWTYPE;
    v_cause gated_state;
    v_lacks text[];
BEGIN
    again := false;
    SELECT *
    INTO v_task
    FROM gated g
    WHERE (g.slot, g.namespace, g.process_id, g.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    state := v_task.state;
    IF v_task.task_id IS NULL OR v_task.state IN ('gates', 'available') THEN
        RETURN;
    END IF;
    IF v_task.order_key IS NOT NULL AND (v_task.run_at > p_now) IS NOT TRUE THEN
        -- Otherwise a smaller version could end unseen, and the tasks waiting for it would not be checked.
        PERFORM
        FROM orders o
        WHERE (o.namespace, o.order_key) = (p_namespace, v_task.order_key)
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            again := true;
            order_key := v_task.order_key;
            state := 'order';
            IF v_task.state <> 'order' THEN
                PERFORM move_gated(
                    p_now, p_slot, p_namespace, p_process_id, p_task_id, 'order');
            END IF;
            RETURN;
        END IF;
    END IF;
    v_cause := find_gated_cause(p_now, p_slot, p_namespace, p_process_id, p_task_id, false);
    IF v_cause = 'gates' THEN
        v_lacks := ARRAY(
            SELECT w.gate
            FROM unnest(v_task.gates) WITH ORDINALITY AS w (gate, place)
            WHERE NOT EXISTS (
                SELECT
                FROM gate_holders h
                WHERE (h.slot, h.namespace, h.process_id, h.gate)
                        = (p_slot, p_namespace, p_process_id, w.gate)
                    AND h.hold = 'process'
                    AND NOT h.is_reserved
            )
            ORDER BY w.place
        );
        IF v_lacks = '{}' THEN
            again := NOT lock_gates_of_queued(p_slot, p_namespace, p_process_id);
        ELSE
            -- All of a queue lack the same gates: the first one's lock is the queue's.
            PERFORM
            FROM gates g
            WHERE (g.namespace, g.gate) = (p_namespace, v_lacks[1])
            FOR NO KEY UPDATE SKIP LOCKED;
            again := NOT FOUND;
        END IF;
        IF again THEN
            RETURN;
        END IF;
    END IF;
    IF v_cause = 'gates' AND v_lacks = '{}' THEN
        state := 'available';
        freed := enqueue_task(p_now, p_replica_id, v_task);
        RETURN;
    END IF;
    state := v_cause;
    IF v_cause <> v_task.state AND move_gated(
            p_now, p_slot, p_namespace, p_process_id, p_task_id, v_cause, v_lacks) THEN
        queue := v_lacks::text;
    END IF;
END;
$$;
