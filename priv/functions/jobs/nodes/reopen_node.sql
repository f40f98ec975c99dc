-- Sets a node to running again because its follower was repaired; the node has failed, or a retry has left it to
-- maintain_job. Nodes that were skipped because of it wait again, unless another node still blocks them; a
-- pending join is cancelled; and a leader that broke resumes its job.
-- Locks: none of its own; the caller has locked leader and follower.
-- Returns: nothing. A job that is done or cancelled stays unchanged, and so does its node.
CREATE FUNCTION reopen_node(
    p_now        timestamptz,
    p_replica_id bigint,
    p_slot       smallint,  -- of the leader
    p_namespace  text,
    p_process_id text,
    p_ordinal    integer
)
RETURNS void
BY INDEX
SET enable_memoize = off
AS $$
DECLARE
    v_job jobs%ROWTYPE;
BEGIN
    SELECT j.*
    INTO v_job
    FROM jobs j
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    IF v_job.state IS NULL OR v_job.state NOT IN ('running', 'failed') THEN
        RETURN;
    END IF;
    UPDATE job_nodes n
    SET state = 'running', begun = true, ended_at = NULL, updated_at = p_now,
        -- One that is ready was counted when it became that.
        attempt = n.attempt + (n.state <> 'ready')::integer,
        started_at = coalesce(n.started_at, p_now), result = NULL, error_code = NULL,
        error_reason = NULL, error_message = NULL, revision = v_job.revision + 1
    WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, p_ordinal)
        AND n.state IN ('failed', 'cancelled', 'ready')
        AND n.waits_for = 0
        -- Else the process is of an earlier job of this leader's name.
        AND n.started_at IS NOT NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM unskip_nodes(p_now, p_slot, p_namespace, p_process_id, ARRAY[p_ordinal]);
    PERFORM recount_job(p_now, p_slot, p_namespace, p_process_id);
    PERFORM withdraw_join(p_now, p_slot, p_namespace, p_process_id);
    UPDATE jobs j
    SET join_task_id = NULL
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    IF v_job.state = 'failed' THEN
        PERFORM resume_job(p_now, p_replica_id, p_slot, p_namespace, p_process_id);
    END IF;
END;
$$;
