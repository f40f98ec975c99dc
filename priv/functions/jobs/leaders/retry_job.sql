-- Continues a failed job: nodes that failed, or were cancelled when it ended, begin again; nodes that were skipped
-- because of them wait again. The keys are looked up before they are locked; if the job has changed meanwhile,
-- nothing is done.
-- Locks: the leader, the leader of the job that it follows in, and all followers that failed, in key order; then as
-- start_nodes and settle_gates.
-- Returns: a verdict: retried, job_not_found, job_not_failed, or again; the names of the nodes that begin again, by
-- ordinal; the keys of followers that lead a failed job themselves, whose retry reopens their nodes here; the tasks
-- that were cancelled, with the keys of their processes; and the effects, as settle_gates returns them.
CREATE FUNCTION retry_job(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_deadline   timestamptz,
    p_timeout    double precision,
    p_audit      text,
    OUT verdict        text,
    OUT node_names     text[],
    OUT failed_leaders jsonb,
    OUT cancelled      jsonb,
    OUT effects        jsonb
)
BY ITEM
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now      timestamptz;
    v_key      process_key[] := ARRAY[(p_slot, p_namespace, p_process_id)::process_key];
    v_seen     bigint;
    v_job      record;
    v_leader   processes%ROWTYPE;
    v_ours     integer[];  -- nodes whose followers begin again
    v_broken   integer[];  -- these, and those that maintain_job begins again
    v_leading  integer[];  -- nodes whose followers lead a failed job: they stay as they are
    v_living   integer[];  -- nodes whose followers were brought back already
    v_finished integer[];  -- nodes whose followers have finished meanwhile
    v_all      integer[];  -- all that begin again
    v_halted   process_key[];
    v_causes   moved_node[];
    v_count    integer;
    v_tasks    record;
BEGIN
    SELECT j.revision INTO v_seen FROM find_job(p_slot, p_namespace, p_process_id) j;
    v_leader := (
        SELECT lock_with_leader(
            p_slot, p_namespace, p_process_id, array_agg(n.follower_slot),
            array_agg(n.follower_namespace), array_agg(n.follower_id))
        FROM jobs j
        JOIN job_nodes n USING (slot, namespace, process_id)
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
            AND j.state = 'failed'
            AND n.state IN ('failed', 'cancelled'));
    v_now := coalesce(p_now, clock_timestamp());
    SELECT * INTO v_job FROM find_job(v_leader.slot, v_leader.namespace, v_leader.process_id);
    verdict := CASE
        WHEN v_job.state IS NULL THEN 'job_not_found'
        WHEN v_job.state <> 'failed' THEN 'job_not_failed'
        WHEN v_job.revision <> v_seen THEN 'again'
        ELSE 'retried'
    END;
    IF verdict <> 'retried' THEN
        RETURN;
    END IF;

    PERFORM write_audit(p_audit, '{"state": "failed"}', '{"state": "running"}');
    node_names := ARRAY(
        SELECT n.name
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
            AND n.state = 'failed'
        ORDER BY n.slot, n.namespace, n.process_id, n.ordinal);
    SELECT array_agg(n.ordinal) FILTER (
            WHERE p.status = 'error' AND NOT n.gated AND j.state IS DISTINCT FROM 'failed'),
        array_agg(n.ordinal) FILTER (
            WHERE p.status = 'error' AND j.state IS DISTINCT FROM 'failed'),
        array_agg(n.ordinal) FILTER (WHERE p.status = 'error' AND j.state = 'failed'),
        array_agg(n.ordinal) FILTER (WHERE p.status IN ('init', 'running', 'finished')),
        array_agg(n.ordinal) FILTER (WHERE p.status = 'finished')
    INTO v_ours, v_broken, v_leading, v_living, v_finished
    FROM job_nodes n
    JOIN LATERAL find_process(n.follower_slot, n.follower_namespace, n.follower_id) p
        ON (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
            = (n.slot, n.namespace, n.process_id, n.ordinal)
            -- Else it is of an earlier job of this leader's name.
            AND n.started_at IS NOT NULL
    LEFT JOIN LATERAL find_job(n.follower_slot, n.follower_namespace, n.follower_id) j ON true
    WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
        AND n.state IN ('failed', 'cancelled');

    -- What those in error have queued or in hand, a repair or a timer that runs again, is cancelled. Not of those
    -- that lead a failed job: their own retries do that.
    v_halted := CASE WHEN v_leader.status = 'error' THEN v_key ELSE '{}' END || ARRAY(
        SELECT (n.follower_slot, n.follower_namespace, n.follower_id)::process_key
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
            AND n.ordinal = ANY (v_broken));
    SELECT h.cancelled, h.effects
    INTO cancelled, effects
    FROM halt_processes(
        v_now, p_replica_id, p_starvation_timeout, 'error', v_halted,
        array_fill('a retry of its job begins it again'::text, ARRAY[cardinality(v_halted)])) h;
    UPDATE jobs j
    SET state = 'running', detail = NULL, ended_at = NULL, join_task_id = NULL,
        deadline_at = coalesce(p_deadline, v_now + make_interval(secs => p_timeout)),
        retry_count = j.retry_count + 1, revision = j.revision + 1, updated_at = v_now,
        upkeep_due_at = NULL
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    SELECT array_agg(b.slot) AS slot, array_agg(b.namespace) AS namespace,
        array_agg(b.process_id) AS process_id, array_agg(b.task_id) AS task_id,
        array_agg(b.constraints) AS constraints
    INTO v_tasks
    FROM restart_nodes(v_now, p_replica_id, p_slot, p_namespace, p_process_id, v_ours) b;
    SELECT array_agg(n.ordinal)
    INTO v_all
    FROM job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
        AND (n.state IN ('failed', 'cancelled') OR n.ordinal = ANY (v_ours))
        AND n.ordinal <> ALL (coalesce(v_leading, '{}'));
    -- Those that need no wake-up.
    UPDATE job_nodes n
    SET state = 'running', begun = true, attempt = n.attempt + 1, ended_at = NULL,
        updated_at = v_now,
        started_at = coalesce(n.started_at, v_now), result = NULL, error_code = NULL,
        error_reason = NULL, error_message = NULL, revision = v_job.revision + 1
    WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
        AND n.ordinal = ANY (v_living);
    -- The others have no follower yet, or one that maintain_job begins again.
    UPDATE job_nodes n
    SET state = CASE WHEN n.waits_for > 0 THEN 'waiting' ELSE 'ready' END::node_state,
        attempt = n.attempt + (n.state = 'failed' OR n.started_at IS NOT NULL)::integer,
        begun = false, updated_at = v_now,
        ready_at = CASE WHEN n.waits_for = 0 THEN v_now END, ended_at = NULL, result = NULL,
        error_code = NULL, error_reason = NULL, error_message = NULL,
        revision = v_job.revision + 1
    WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
        AND n.state IN ('failed', 'cancelled')
        AND n.ordinal <> ALL (coalesce(v_leading, '{}'));
    PERFORM unskip_nodes(v_now, p_slot, p_namespace, p_process_id, v_all);
    SELECT array_agg(ROW(
        n.slot, n.namespace, n.process_id, n.ordinal, n.state, false, n.state, n.successors
    )::moved_node)
    INTO v_causes
    FROM unnest(v_leading) AS o (ordinal)
    JOIN job_nodes n
        ON (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, o.ordinal);
    PERFORM skip_nodes(v_now, v_causes);

    -- The leader, as simple_repair brings one back; but it is running at once, so that it can be told.
    IF v_leader.status = 'error' THEN
        UPDATE processes p
        SET status = 'running', previous_status = 'error', status_changed_at = v_now, detail = NULL,
            corrupted_by = NULL, broken_at = NULL, failure_id = NULL, failure_reason = NULL
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id);
        PERFORM count_changes(ARRAY[(p_namespace, 'error', 'running')::status_change]);
        PERFORM release_held(p_replica_id, v_key);
        IF EXISTS (
            SELECT
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (p_slot, p_namespace, p_process_id, v_leader.corrupted_by)
                AND t.task_type IN ('timeout', 'remove')
        ) THEN
            effects := merge_json(effects, run_broken_again(
                v_now, p_replica_id, p_starvation_timeout, v_leader));
        END IF;
        PERFORM forget_memos(v_key);
        PERFORM enqueue_first_task(v_now, p_slot, p_namespace, p_process_id);
        IF v_leader.is_gated THEN
            effects := merge_json(effects, settle_gates(
                v_now, p_replica_id, p_starvation_timeout, 100, v_key));
        END IF;
        effects := merge_json(
            effects, describe_first_task(v_now, p_slot, p_namespace, p_process_id));
    END IF;
    v_count := recount_job(v_now, p_slot, p_namespace, p_process_id);
    IF v_finished IS NOT NULL THEN
        PERFORM end_nodes(
            v_now, p_replica_id, array_agg((n.slot, n.namespace, n.process_id)::process_key),
            array_agg(n.ordinal),
            -- One that was terminated stays so, and its node fails again.
            array_agg(CASE WHEN p.end_reason IS NULL THEN 'done' ELSE 'failed' END::node_state),
            array_agg(p.result), array_agg(CASE WHEN p.end_reason IS NOT NULL THEN 9 END),
            array_agg(CASE WHEN p.end_reason IS NOT NULL THEN 'PROCESS_TERMINATED' END),
            array_agg(p.end_reason))
        FROM unnest(v_finished) AS o (ordinal)
        JOIN job_nodes n
            ON (n.slot, n.namespace, n.process_id, n.ordinal)
                = (p_slot, p_namespace, p_process_id, o.ordinal)
        JOIN processes p
            ON (p.slot, p.namespace, p.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id);
    ELSIF v_count = 0 THEN
        PERFORM add_join(v_now, p_replica_id, p_slot, p_namespace, p_process_id);
    END IF;
    UPDATE jobs j
    SET upkeep_due_at = v_now
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
        AND j.ready > 0;
    effects := merge_json(
        effects, reopen_node(v_now, p_replica_id, p_starvation_timeout, v_leader));

    SELECT jsonb_agg(jsonb_build_array(n.follower_slot, n.follower_namespace, n.follower_id))
    INTO failed_leaders
    FROM unnest(v_leading) AS o (ordinal)
    JOIN job_nodes n
        ON (n.slot, n.namespace, n.process_id, n.ordinal)
            = (p_slot, p_namespace, p_process_id, o.ordinal);
    effects := merge_json(effects, apply_constraints(
        v_now, p_replica_id, p_starvation_timeout, v_tasks.slot, v_tasks.namespace,
        v_tasks.process_id, v_tasks.task_id, v_tasks.constraints));
    effects := merge_json(effects, describe_recovered(
        v_now, p_replica_id, p_starvation_timeout, ARRAY(
            SELECT (n.follower_slot, n.follower_namespace, n.follower_id)::process_key
            FROM unnest(v_ours) AS o (ordinal)
            CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n)));
    effects := merge_json(effects, (
        SELECT jsonb_agg(jsonb_build_array(s.namespace, s.process_id, s.task_id))
        FROM start_nodes(v_now, p_replica_id, v_key) s
    ));
    effects := merge_json(effects, find_due_join(p_slot, p_namespace, p_process_id));
END;
$$;
