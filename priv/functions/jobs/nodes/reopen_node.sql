-- Sets the node of a follower to running again because the follower was repaired; the node has failed, or a retry
-- has left it to maintain_job. Nodes that were skipped because of it wait again, unless another node still blocks
-- them; a pending join is cancelled; and a leader that broke resumes its job.
-- Locks: none of its own; the caller has locked leader and follower. Then as resume_job.
-- Returns: what resume_job returns. A job that is done or cancelled stays unchanged, and so does its node.
CREATE FUNCTION reopen_node(LIKE own_arguments, p_follower processes)
RETURNS jsonb
BY ITEM
AS $$
DECLARE
    v_slot      smallint := p_follower.leader_slot;
    v_namespace text := p_follower.leader_namespace;
    v_leader_id text := p_follower.leader_id;
    v_job       record;
BEGIN
    SELECT * INTO v_job FROM find_job(v_slot, v_namespace, v_leader_id);
    IF v_job.state IS NULL OR v_job.state NOT IN ('running', 'failed') THEN
        RETURN NULL;
    END IF;
    UPDATE job_nodes n
    SET state = 'running', begun = true, ended_at = NULL, updated_at = p_now,
        -- One that is ready was counted when it became that.
        attempt = n.attempt + (n.state <> 'ready')::integer,
        result = NULL, error_code = NULL, error_reason = NULL, error_message = NULL,
        revision = v_job.revision + 1
    WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
            = (v_slot, v_namespace, v_leader_id, p_follower.node)
        AND n.state IN ('failed', 'cancelled', 'ready')
        -- Otherwise the process is of an earlier job of this leader's name.
        AND n.started_at IS NOT NULL
        AND (n.follower_slot, n.follower_namespace, n.follower_id)
            = (p_follower.slot, p_follower.namespace, p_follower.process_id);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM unskip_nodes(p_now, v_slot, v_namespace, v_leader_id, ARRAY[p_follower.node]);
    PERFORM recount_job(p_now, v_slot, v_namespace, v_leader_id);
    PERFORM withdraw_join(p_now, v_slot, v_namespace, v_leader_id);
    RETURN CASE WHEN v_job.state = 'failed' THEN resume_job(
        p_now, p_replica_id, p_starvation_timeout, v_slot, v_namespace, v_leader_id) END;
END;
$$;
