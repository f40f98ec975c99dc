-- Applies the constraints of tasks that have just been admitted: takes the tasks out of the queues of their processes
-- and lets them wait for their gates and orders. The caller then calls settle_gates. A missing gate is created with
-- the capacity given in the constraint, or as a mutex: that happens only to timers, whose step has been carried out.
-- p_constraints of an item: {"priority", "run_at" (microseconds), "order": [key, [version, ...]], "gates": {gate:
-- capacity or null}, "hold"}; what is missing has its default.
-- Locks: gates that it makes; the caller has locked the processes.
CREATE FUNCTION constrain_tasks(
    p_now         timestamptz,
    p_replica_id  bigint,
    p_key         process_key[],
    p_task_id     bigint[],
    p_constraints json[]
)
RETURNS void
AS $$
DECLARE
    v_item    record;
    v_spent   bigint[];  -- in the states of gated_state, and running
    v_created timestamptz;
BEGIN
    INSERT INTO gates (namespace, gate, capacity, created_at, updated_at)
    SELECT DISTINCT ON (i.namespace, c.gate) i.namespace, c.gate, coalesce(c.capacity, 1), p_now, p_now
    FROM unnest(p_key, p_constraints) AS i (slot, namespace, process_id, constraints)
    CROSS JOIN LATERAL (
        SELECT c.key COLLATE "C" AS gate, c.value::integer AS capacity
        FROM json_each_text(i.constraints -> 'gates') AS c
    ) c
    ORDER BY i.namespace, c.gate, c.capacity NULLS LAST
    ON CONFLICT DO NOTHING;
    -- A transaction that deletes one waits for us, and then sees that it is named.
    PERFORM
    FROM gates g
    WHERE (g.namespace, g.gate) IN (
        SELECT i.namespace, c.key
        FROM unnest(p_key, p_constraints) AS i (slot, namespace, process_id, constraints)
        CROSS JOIN LATERAL json_object_keys(coalesce(i.constraints -> 'gates', '{}')) AS c (key)
    )
    ORDER BY g.namespace, g.gate
    FOR KEY SHARE;

    FOR v_item IN
        SELECT i.slot, i.namespace, i.process_id, i.task_id, i.constraints, s.task_type, s.due_at
        FROM unnest(p_key, p_task_id, p_constraints)
            AS i (slot, namespace, process_id, task_id, constraints)
        CROSS JOIN LATERAL (
            SELECT s.task_type, s.due_at
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                = (i.slot, i.namespace, i.process_id, i.task_id)
            OFFSET 0
        ) s
    LOOP
        -- One that is run again has a life behind it, and waited for its process since its end.
        SELECT coalesce(t.spent_us, '{0,0,0,0,0,0}'), t.created_at
        INTO v_spent, v_created
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (v_item.slot, v_item.namespace, v_item.process_id, v_item.task_id);
        v_spent[3] := v_spent[3] + (extract(epoch FROM p_now - v_created) * 1000000)::bigint
            - (SELECT sum(u.spent) FROM unnest(v_spent) AS u (spent))::bigint;
        INSERT INTO gated (
            slot, namespace, process_id, task_id, task_type, state, state_since, run_at, ready_at,
            priority, order_key, order_version, gates, hold, replica_id, spent_us
        )
        SELECT v_item.slot, v_item.namespace, v_item.process_id, v_item.task_id, v_item.task_type,
            CASE WHEN a.run_at > p_now THEN 'time' ELSE 'process' END::gated_state, p_now,
            a.run_at, greatest(p_now, a.run_at),
            coalesce((v_item.constraints ->> 'priority')::smallint, 3),
            v_item.constraints -> 'order' ->> 0,
            CASE WHEN v_item.constraints -> 'order' IS NOT NULL THEN ARRAY(
                SELECT v::integer
                FROM json_array_elements_text(v_item.constraints -> 'order' -> 1) AS v
            ) END,
            ARRAY(SELECT k FROM json_object_keys(coalesce(v_item.constraints -> 'gates', '{}')) AS k
                ORDER BY k COLLATE "C"),
            coalesce(v_item.constraints ->> 'hold', 'task')::gate_hold, p_replica_id, v_spent
        FROM (
            SELECT CASE
                WHEN v_item.task_type IN ('timeout', 'remove') THEN v_item.due_at
                ELSE to_timestamp(((v_item.constraints ->> 'run_at')::numeric / 1000000)::float8)
            END AS run_at
        ) a;
        UPDATE tasks t
        SET constraints = coalesce(t.constraints, v_item.constraints), spent_us = NULL
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (v_item.slot, v_item.namespace, v_item.process_id, v_item.task_id);
        PERFORM dequeue_task(
            p_now, v_item.slot, v_item.namespace, v_item.process_id, v_item.task_id);
    END LOOP;
END;
$$;
