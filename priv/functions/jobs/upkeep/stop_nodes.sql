-- Stops followers of jobs that have ended: one without a running step breaks, its queued tasks and its node are
-- cancelled, and a job that it leads fails; one with a running step is stopped by its settlement. The detail of the
-- process is the reason JOB_CANCELLED and the cause, which its node has as reason and message. If the job failed as
-- a whole (fail_jobs), the node fails with the reason JOB_FAILED, and so do the nodes of the jobs below.
-- Locks: none of its own, the caller has locked leaders and followers; then as halt_processes.
-- Returns: the cancelled tasks, the jobs of followers that maintain_job must check, and the effects.
CREATE FUNCTION stop_nodes(
    LIKE own_arguments,
    p_leader  process_key[],
    p_ordinal integer[]
)
RETURNS halted
BY ITEM
AS $$
DECLARE
    v_halted halted;
    v_nodes  record;
    v_living record;  -- of those, the followers that are there and theirs
BEGIN
    SELECT array_agg((n.slot, n.namespace, n.process_id)::process_key) AS leaders,
        array_agg(n.ordinal) AS ordinals,
        array_agg((n.follower_slot, n.follower_namespace, n.follower_id)::process_key) AS followers,
        array_agg(n.why) AS whys, array_agg(n.fails) AS fails,
        array_agg(CASE WHEN n.fails THEN 'failed' ELSE 'cancelled' END::node_state) AS states,
        array_agg(n.reason) AS reasons, array_agg(concat(n.reason, ': ', n.why)) AS details
    INTO v_nodes
    FROM (
        SELECT n.slot, n.namespace, n.process_id, n.ordinal, n.follower_slot,
            n.follower_namespace, n.follower_id, j.fails_nodes AS fails,
            -- Of a job whose leader was stopped itself the detail says so already.
            describe_job_end(j.detail) AS why,
            CASE WHEN j.fails_nodes THEN 'JOB_FAILED' ELSE 'JOB_CANCELLED' END AS reason
        FROM unnest(p_leader, p_ordinal) AS i (slot, namespace, process_id, ordinal)
        JOIN LATERAL find_job(i.slot, i.namespace, i.process_id) j
            ON j.state <> 'running'
        JOIN LATERAL find_node(i.slot, i.namespace, i.process_id, i.ordinal) n
            ON n.state = 'running'
        LEFT JOIN LATERAL (
            SELECT r.task_id
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id)
            OFFSET 0
        ) r ON true
        WHERE r.task_id IS NULL
    ) n;
    IF v_nodes.leaders IS NULL THEN
        RETURN NULL;
    END IF;

    SELECT array_agg((p.slot, p.namespace, p.process_id)::process_key) AS followers,
        array_agg(v_nodes.details[i.item]) AS details, array_agg(v_nodes.fails[i.item]) AS fails
    INTO v_living
    FROM unnest(v_nodes.followers) WITH ORDINALITY AS i (slot, namespace, process_id, item)
    JOIN LATERAL find_process(i.slot, i.namespace, i.process_id) p
        ON ((p.leader_slot, p.leader_namespace, p.leader_id)::process_key, p.node)
            = (v_nodes.leaders[i.item], v_nodes.ordinals[i.item])
            AND p.status <> 'finished';
    IF v_living.followers IS NOT NULL THEN
        v_halted := halt_processes(
            p_now, p_replica_id, p_starvation_timeout, 'error', v_living.followers,
            v_living.details);
        v_halted.jobs := end_jobs(
            p_now, v_living.followers, 'failed', v_living.details, v_living.fails);
    END IF;
    PERFORM end_nodes(
        p_now, p_replica_id, v_nodes.leaders, v_nodes.ordinals, v_nodes.states, NULL,
        array_fill(10, ARRAY[cardinality(v_nodes.leaders)]), v_nodes.reasons, v_nodes.whys);
    RETURN v_halted;
END;
$$;
