-- Removes a process in any status, if it is still the one with that init task: a removal that was
-- held up on its way must not meet a later process of the same id. A step in flight finds its lease
-- gone.
-- Locks: the process; then, if it is gated, as settle_gates.
-- Returns: whether it existed, its unfinished tasks as settle_tasks tells the cancelled ones, and what
-- settle_gates returns as settled_gates tells it.
CREATE FUNCTION remove_process(
    p_now          timestamptz,
    p_replica_id   bigint,
    p_patience     double precision,
    p_slot         smallint,
    p_namespace    text,
    p_process_id   text,
    p_init_task_id bigint
)
RETURNS TABLE (existed boolean, cancelled jsonb, told jsonb)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz;
    v_is_gated boolean;
BEGIN
    SELECT is_gated
    INTO v_is_gated
    FROM processes
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id)
        AND init_task_id = p_init_task_id
    FOR UPDATE;
    existed := FOUND;
    v_now := coalesce(p_now, clock_timestamp());
    IF existed THEN
        cancelled := delete_process(
            v_now - interval '1 minute', p_slot, p_namespace, p_process_id, NULL);
    END IF;
    IF v_is_gated THEN
        SELECT jsonb_agg(jsonb_build_array(
            g.namespace, g.process_id, g.task_id, g.gate, g.line, g.order_key,
            g.wait_seconds, g.due_seconds))
        INTO told
        FROM settle_gates(
            v_now, p_replica_id, p_patience, 100, ARRAY[p_slot], ARRAY[p_namespace],
            ARRAY[p_process_id]) g;
    END IF;
    RETURN NEXT;
END;
$$;
