-- Does for admissions what has to do with gates: the tasks p_tasks, of the items p_items, get their
-- constraints, and those with nothing to wait for are promoted.
-- Locks: as settle_gates.
-- Returns: [[namespace, process_id, task_id, gate, queue, order_key, wait_seconds, due_seconds], ...], the
-- rows of settle_gates; null if there are none.
CREATE FUNCTION admit_gates_batch(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_items              integer[],
    p_tasks              bigint[],
    p_constraints        json[]
)
RETURNS jsonb
AS $$
DECLARE
    v_slot        smallint[];
    v_namespace   text[];
    v_process_id  text[];
    v_constraints json[];
    v_effects     jsonb;
BEGIN
    IF p_items IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(p_slot[i.item] ORDER BY i.place),
        array_agg(p_namespace[i.item] ORDER BY i.place),
        array_agg(p_process_id[i.item] ORDER BY i.place),
        array_agg(p_constraints[i.item] ORDER BY i.place)
    INTO v_slot, v_namespace, v_process_id, v_constraints
    FROM unnest(p_items) WITH ORDINALITY AS i (item, place);
    PERFORM constrain_tasks(
        p_now, p_replica_id, v_slot, v_namespace, v_process_id, p_tasks, v_constraints);
    SELECT jsonb_agg(jsonb_build_array(
        g.namespace, g.process_id, g.task_id, g.gate, g.queue, g.order_key,
        g.wait_seconds, g.due_seconds))
    INTO v_effects
    FROM settle_gates(
        p_now, p_replica_id, p_starvation_timeout, 100, v_slot, v_namespace, v_process_id, p_tasks) g;
    RETURN v_effects;
END;
$$;
