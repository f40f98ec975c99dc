-- Removes a process in any status, if it still has that init task: a delayed removal must not meet a later process of
-- the same id. A running step finds its lease gone, and the node of a follower fails.
-- Locks: the process, and the leader of the job that it follows in, in key order; then, if it is gated, as
-- settle_gates, and as start_nodes.
-- Returns: whether it existed, its unfinished tasks as settle_tasks returns the cancelled ones, and what
-- settle_gates returns.
CREATE FUNCTION remove_process(
    LIKE own_arguments,
    p_slot         smallint,
    p_namespace    text,
    p_process_id   text,
    p_init_task_id bigint,
    p_audit        text DEFAULT NULL
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
    effects := describe_ends(ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    IF v_process.has_reply_requests THEN
        effects := merge_json(effects, describe_senders(
            ARRAY[(p_slot, p_namespace, p_process_id)::process_key]));
    END IF;
    cancelled := delete_processes(
        v_now - interval '1 minute', ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    IF v_process.is_gated THEN
        effects := merge_json(effects, settle_gates(
            v_now, p_replica_id, p_starvation_timeout, 100,
            ARRAY[(p_slot, p_namespace, p_process_id)::process_key]));
    END IF;
    PERFORM write_audit(p_audit, jsonb_build_object('status', v_process.status), NULL);
    effects := merge_json(effects, fail_node(
        v_now, p_replica_id, v_process, 'PROCESS_REMOVED', 'its process was removed'));
    RETURN NEXT;
END;
$$;
