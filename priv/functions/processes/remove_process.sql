-- Removes a process in any status, if it is still the one with that init task: a removal that was held up on its
-- way must not meet a later process of the same id. A step in flight finds its lease gone. Of a follower the node
-- fails.
-- Locks: the process, and the leader of the job that it follows in, in key order; then, if it is gated, as
-- settle_gates, and as start_nodes.
-- Returns: whether it existed, its unfinished tasks as settle_tasks tells the cancelled ones, and what settle_gates
-- returns as settle_gates_batch tells it.
CREATE FUNCTION remove_process(
    LIKE own_arguments,
    p_slot         smallint,
    p_namespace    text,
    p_process_id   text,
    p_init_task_id bigint
)
RETURNS TABLE (existed boolean, cancelled jsonb, effects jsonb)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now     timestamptz;
    v_process processes%ROWTYPE;
BEGIN
    v_process := lock_with_leader(p_slot, p_namespace, p_process_id);
    existed := coalesce(v_process.init_task_id = p_init_task_id, false);
    IF NOT existed THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    cancelled := delete_process(
        v_now - interval '1 minute', p_slot, p_namespace, p_process_id, NULL);
    IF v_process.is_gated THEN
        effects := settle_gates(
            v_now, p_replica_id, p_starvation_timeout, 100,
            ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    END IF;
    effects := merge_json(effects, fail_node(
        v_now, p_replica_id, v_process, 'PROCESS_REMOVED', 'its process was removed'));
    RETURN NEXT;
END;
$$;
