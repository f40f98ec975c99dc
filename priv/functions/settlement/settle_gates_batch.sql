-- Applies the gate effects of a batch of settlements: timers that were set with constraints get them, and
-- settle_gates is called for the processes of the items p_gated.
-- Locks: as settle_gates.
-- Returns: as settle_gates.
CREATE FUNCTION settle_gates_batch(
    LIKE own_arguments,
    p_gated             integer[],
    p_slot              smallint[],
    p_namespace         text[],
    p_process_id        text[],
    p_steps             settling[],
    p_timer_constraints json[]
)
RETURNS jsonb
AS $$
DECLARE
    v_key         process_key[];
    v_task_id     bigint[];
    v_constraints json[];
BEGIN
    -- An item whose lease is lost has no entry in p_steps, and its process is unchanged. A removed process
    -- no longer exists.
    SELECT array_agg((s.slot, s.namespace, s.process_id)::process_key), array_agg(s.timer_id),
        array_agg(p_timer_constraints[s.item])
    INTO v_key, v_task_id, v_constraints
    FROM unnest(p_steps) AS s
    WHERE s.timer_origin = 'set' AND p_timer_constraints[s.item] IS NOT NULL;
    IF v_key IS NOT NULL THEN
        PERFORM constrain_tasks(p_now, p_replica_id, v_key, v_task_id, v_constraints);
    END IF;

    SELECT array_agg((p_slot[i.item], p_namespace[i.item], p_process_id[i.item])::process_key)
    INTO v_key
    FROM unnest(p_gated) AS i (item)
    WHERE EXISTS (SELECT FROM unnest(p_steps) AS s WHERE s.item = i.item)
        OR NOT EXISTS (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
        );
    IF v_key IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN settle_gates(p_now, p_replica_id, p_starvation_timeout, 100, v_key);
END;
$$;
