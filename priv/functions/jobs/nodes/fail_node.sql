-- Fails the node of a follower that was ended by something other than a step, and continues its job.
-- p_follower: the follower before that; it may have been deleted.
-- Locks: none of its own; the caller has locked the leader. Then as start_nodes.
-- Returns: the tasks that are due now because of it, as settle_gates returns them; null: none.
CREATE FUNCTION fail_node(
    p_now        timestamptz,
    p_replica_id bigint,
    p_follower   processes,
    p_reason     text,
    p_message    text
)
RETURNS jsonb
AS $$
DECLARE
    v_leader process_key[] := ARRAY[(
        p_follower.leader_slot, p_follower.leader_namespace, p_follower.leader_id)::process_key];
    v_due    jsonb;
BEGIN
    IF NOT is_node_of(p_follower) THEN
        RETURN NULL;
    END IF;
    PERFORM end_nodes(
        p_now, p_replica_id, v_leader, ARRAY[p_follower.node], ARRAY['failed'::node_state], NULL,
        ARRAY[9], ARRAY[p_reason], ARRAY[coalesce(p_message, '')]);
    v_due := (
        SELECT jsonb_agg(jsonb_build_array(s.namespace, s.process_id, s.task_id))
        FROM start_nodes(p_now, p_replica_id, v_leader) s
    );
    -- And the join, where that was the last of the nodes.
    RETURN merge_json(v_due, find_due_join(
        p_follower.leader_slot, p_follower.leader_namespace, p_follower.leader_id));
END;
$$;
