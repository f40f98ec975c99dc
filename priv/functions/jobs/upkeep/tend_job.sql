-- Does a batch of the work for a job that settlements leave over: starts ready nodes with constraints or, once
-- the job has ended, stops its followers. If the leader is itself a node of another job (the outer job), it also
-- reopens that node after a repair of this job, or fails the outer job if this job failed as a whole. When no
-- such work is left, the verdict is tended.
-- Keys are looked up without locks; the rows are read again once they are locked.
-- p_after: the ordinal up to which nodes have been looked at.
-- Locks: the leader, its own leader if it follows one, and the followers, in key order; new followers are
-- inserted in key order; then as settle_gates.
-- Returns: what halt_processes returns, and, with the verdict failed, a job that was failed as a whole; then a row
-- with a verdict: tended; more, to be continued from `ordinal`; or again, because the job has changed meanwhile.
-- That row also has the counts of nodes started and stopped, and the effects on gates.
CREATE FUNCTION tend_job(
    p_now        timestamptz,
    p_replica_id bigint,
    p_patience   double precision,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_after      integer,
    p_limit      integer
)
RETURNS TABLE (
    verdict text, ordinal integer, started integer, stopped integer, slot smallint,
    namespace text, process_id text, cancelled jsonb, effects jsonb
)
BY INDEX
SET enable_memoize = off
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now      timestamptz;
    v_state    job_state;
    v_job      jobs%ROWTYPE;
    v_is_there boolean;  -- the leader, and locked: one that comes later is another
    v_ordinals integer[];
    v_before   integer;
    v_verdict  text;
    v_leader   processes%ROWTYPE;
BEGIN
    SELECT j.state
    INTO v_state
    FROM jobs j
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
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
    SELECT bool_or((p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id))
    INTO v_is_there
    FROM (
        SELECT k.slot, k.namespace, k.process_id
        FROM (
            SELECT p_slot AS slot, p_namespace AS namespace, p_process_id AS process_id
            UNION
            SELECT p.leader_slot, p.leader_namespace, p.leader_id
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
                AND p.leader_id IS NOT NULL
            UNION
            SELECT n.follower_slot, n.follower_namespace, n.follower_id
            FROM unnest(v_ordinals) AS o (ordinal)
            CROSS JOIN LATERAL (
                SELECT n.follower_slot, n.follower_namespace, n.follower_id
                FROM job_nodes n
                WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                    = (p_slot, p_namespace, p_process_id, o.ordinal)
                OFFSET 0
            ) n
        ) k
        ORDER BY k.slot, k.namespace, k.process_id
    ) k
    CROSS JOIN LATERAL (
        SELECT p.slot, p.namespace, p.process_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        FOR NO KEY UPDATE
    ) p;
    v_now := coalesce(p_now, clock_timestamp());

    SELECT j.*
    INTO v_job
    FROM jobs j
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    v_verdict := CASE
        WHEN v_is_there IS NOT TRUE OR v_job.untended_at IS NULL THEN 'tended'
        WHEN (v_job.state = 'running') <> (v_state = 'running') THEN 'again'
        WHEN cardinality(v_ordinals) >= p_limit THEN 'more'
        ELSE 'tended'
    END;
    IF v_verdict = 'again' OR v_is_there IS NOT TRUE OR v_job.untended_at IS NULL THEN
        verdict := v_verdict; started := 0; stopped := 0;
        RETURN NEXT;
        RETURN;
    END IF;

    IF v_job.state = 'running' THEN
        PERFORM reopen_node(
            v_now, p_replica_id, n.slot, n.namespace, n.process_id, n.ordinal)
        FROM (
            SELECT p.slot, p.namespace, p.process_id, p.leader_slot, p.leader_namespace,
                p.leader_id, p.node
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
                AND p.leader_id IS NOT NULL
                AND p.status = 'running'
            OFFSET 0
        ) p
        CROSS JOIN LATERAL (
            SELECT n.slot, n.namespace, n.process_id, n.ordinal
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
                    = (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
                AND (n.follower_slot, n.follower_namespace, n.follower_id)
                    = (p.slot, p.namespace, p.process_id)
            OFFSET 0
        ) n;
        SELECT g.effects, g.started
        INTO effects, started
        FROM start_gated_nodes(
            v_now, p_replica_id, p_patience, p_slot, p_namespace, p_process_id, v_ordinals) g;
    ELSIF cardinality(v_ordinals) > 0 THEN
        FOR slot, namespace, process_id, cancelled, effects IN
            SELECT s.slot, s.namespace, s.process_id, s.cancelled, s.effects
            FROM stop_nodes(
                v_now, p_replica_id,
                array_fill(p_slot, ARRAY[cardinality(v_ordinals)]),
                array_fill(p_namespace, ARRAY[cardinality(v_ordinals)]),
                array_fill(p_process_id, ARRAY[cardinality(v_ordinals)]),
                v_ordinals, p_patience) s
        LOOP
            RETURN NEXT;
        END LOOP;
        slot := NULL; namespace := NULL; process_id := NULL; cancelled := NULL; effects := NULL;
        v_before := v_job.running;
        SELECT v_before - j.running
        INTO stopped
        FROM jobs j
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    END IF;

    IF v_job.fails_nodes AND v_job.state = 'failed' THEN
        SELECT p.*
        INTO v_leader
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
            AND p.leader_id IS NOT NULL
            AND p.status = 'error';
        IF FOUND AND is_node_of(v_leader) THEN
            FOR slot, namespace, process_id, cancelled, effects IN
                SELECT *
                FROM fail_jobs(
                    v_now, p_replica_id, p_patience, ARRAY[v_leader.leader_slot],
                    ARRAY[v_leader.leader_namespace], ARRAY[v_leader.leader_id],
                    ARRAY[concat('ZOMBIE: ', why_of(v_job.detail))])
            LOOP
                verdict := CASE WHEN cancelled IS NULL AND effects IS NULL THEN 'failed' END;
                RETURN NEXT;
            END LOOP;
            verdict := NULL;
            slot := NULL; namespace := NULL; process_id := NULL; cancelled := NULL; effects := NULL;
            PERFORM fail_node(
                v_now, p_replica_id, v_leader, 'JOB_FAILED', why_of(v_job.detail));
        END IF;
    END IF;

    IF v_verdict = 'tended' THEN
        UPDATE jobs j
        SET untended_at = NULL
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
            v_verdict := 'again';
        END IF;
    END IF;
    verdict := v_verdict;
    ordinal := v_ordinals[cardinality(v_ordinals)];
    started := coalesce(started, 0);
    stopped := coalesce(stopped, 0);
    RETURN NEXT;
END;
$$;
