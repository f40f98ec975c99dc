-- Does a batch of the work for a job that settlements leave over: starts ready nodes with constraints or, once the
-- job has ended, stops its followers. If the leader is itself a node of another job (the outer job), it also
-- reopens that node after a repair of this job, stops the leader if the outer job has ended while the leader lost
-- its step (withdraw_join), or fails the outer job if this job failed as a whole. Keys are looked up without locks;
-- the rows are read again once they are locked.
-- p_after: the ordinal up to which nodes have been looked at.
-- Locks: the leader, its own leader if it follows one, and the followers, in key order; new followers are inserted
-- in key order; then as settle_gates.
-- Returns: a verdict: done; more, to be continued from `ordinal`; or again, because the job has changed meanwhile;
-- how many nodes were started and stopped; the cancelled tasks, with the keys of their processes; the keys of jobs
-- of followers that need upkeep; of a job that was failed as a whole; and the effects on gates.
CREATE FUNCTION maintain_job(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_after      integer,
    p_limit      integer,
    OUT verdict   text,
    OUT ordinal   integer,
    OUT started   integer,
    OUT stopped   integer,
    OUT cancelled jsonb,
    OUT upkeep    jsonb,
    OUT failed    jsonb,
    OUT effects   jsonb
)
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now      timestamptz;
    v_state    job_state;
    v_job      record;
    v_ordinals integer[];
    v_leader   processes%ROWTYPE;
    v_outer    process_key[];  -- the leader of the leader
    v_reopened jsonb;
    v_halted   halted;
    v_failed   halted;
BEGIN
    SELECT j.state INTO v_state FROM find_job(p_slot, p_namespace, p_process_id) j;
    IF v_state = 'running' THEN
        v_ordinals := ARRAY(
            SELECT n.ordinal
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
                AND n.queued AND n.ordinal > p_after AND n.gated
            ORDER BY n.slot, n.namespace, n.process_id, n.ordinal
            LIMIT p_limit);
    ELSE
        v_ordinals := ARRAY(
            SELECT n.ordinal
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
                AND n.state = 'running' AND n.ordinal > p_after
            ORDER BY n.slot, n.namespace, n.process_id, n.ordinal
            LIMIT p_limit);
    END IF;
    v_leader := (
        SELECT lock_with_leader(
            p_slot, p_namespace, p_process_id, array_agg(n.follower_slot),
            array_agg(n.follower_namespace), array_agg(n.follower_id))
        FROM unnest(v_ordinals) AS o (ordinal)
        CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n);
    v_now := coalesce(p_now, clock_timestamp());

    SELECT * INTO v_job FROM find_job(v_leader.slot, v_leader.namespace, v_leader.process_id);
    v_outer := ARRAY[(
        v_leader.leader_slot, v_leader.leader_namespace, v_leader.leader_id)::process_key];
    started := 0;
    stopped := 0;
    verdict := CASE
        WHEN v_job.upkeep_due_at IS NULL THEN 'done'
        WHEN (v_job.state = 'running') <> (v_state = 'running') THEN 'again'
        WHEN cardinality(v_ordinals) >= p_limit THEN 'more'
        ELSE 'done'
    END;
    IF verdict = 'again' OR v_job.upkeep_due_at IS NULL THEN
        RETURN;
    END IF;

    IF v_job.state = 'running' THEN
        IF v_leader.status = 'running' THEN
            v_reopened := reopen_node(v_now, p_replica_id, p_starvation_timeout, v_leader);
        END IF;
        IF is_node_of(v_leader) THEN
            v_halted := stop_nodes(
                v_now, p_replica_id, p_starvation_timeout, v_outer, ARRAY[v_leader.node]);
        END IF;
        upkeep := v_halted.jobs;
        SELECT merge_json(v_halted.effects, g.effects), g.started
        INTO v_halted.effects, started
        FROM start_gated_nodes(
            v_now, p_replica_id, p_starvation_timeout, p_slot, p_namespace, p_process_id, v_ordinals) g;
    ELSIF cardinality(v_ordinals) > 0 THEN
        v_halted := stop_nodes(
            v_now, p_replica_id, p_starvation_timeout, array_fill(
                (p_slot, p_namespace, p_process_id)::process_key, ARRAY[cardinality(v_ordinals)]),
            v_ordinals);
        upkeep := v_halted.jobs;
        SELECT v_job.running - j.running
        INTO stopped
        FROM find_job(p_slot, p_namespace, p_process_id) j;
    END IF;

    IF v_job.fails_nodes AND v_job.state = 'failed' AND v_leader.status = 'error'
        AND is_node_of(v_leader)
    THEN
        v_failed := fail_jobs(
            v_now, p_replica_id, p_starvation_timeout, v_outer, ARRAY[concat('ZOMBIE: ', describe_job_end(v_job.detail))]);
        failed := v_failed.jobs;
        v_halted := merge_halted(v_halted, v_failed);
        PERFORM fail_node(
            v_now, p_replica_id, v_leader, 'JOB_FAILED', describe_job_end(v_job.detail));
    END IF;

    IF verdict = 'done' THEN
        UPDATE jobs j
        SET upkeep_due_at = NULL
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
            AND NOT EXISTS (
                SELECT
                FROM job_nodes n
                WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
                    AND CASE
                        WHEN j.state = 'running' THEN n.queued AND n.gated
                        -- A process with a running step is stopped by its settlement.
                        ELSE n.state = 'running' AND (
                            SELECT r.task_id
                            FROM running r
                            WHERE (r.slot, r.namespace, r.process_id)
                                = (n.follower_slot, n.follower_namespace, n.follower_id)
                        ) IS NULL
                    END
            );
        IF NOT FOUND THEN
            verdict := 'again';
        END IF;
    END IF;
    cancelled := v_halted.cancelled;
    effects := merge_json(v_reopened, v_halted.effects);
    ordinal := v_ordinals[cardinality(v_ordinals)];
    started := coalesce(started, 0);
    stopped := coalesce(stopped, 0);
END;
$$;
