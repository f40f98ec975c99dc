-- Does a part of a round of recovery: checks running jobs, from a key on, and repairs stalled ones: adds a join if
-- all nodes have ended, ends nodes whose followers have ended or are gone, and starts ready nodes if there is room.
-- In a healthy engine it finds nothing. Jobs that have changed recently are skipped: a stalled job does not change.
-- p_taken_at: when the caller took the round (take_upkeep_round in jobs.sql), which this call renews.
-- Locks: the round; then leaders and followers, in key order; then as start_nodes.
-- Returns: a verdict: lost, the round; more, from the key on; whole. What was found, as [kind, slot, namespace,
-- process_id, node], where the kind is join, node, start, or gated, a job that needs upkeep. And the tasks that are
-- due now, as effects like those of settle_gates_batch.
CREATE FUNCTION recover_jobs(
    p_now        timestamptz,
    p_replica_id bigint,
    p_taken_at   timestamptz,
    p_interval   interval,
    p_age        interval,
    p_limit      integer,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    OUT verdict    text,
    OUT slot       smallint,
    OUT namespace  text,
    OUT process_id text,
    OUT finds      jsonb,
    OUT effects    jsonb
)
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs     process_key[];
    v_leaders  process_key[];  -- of the nodes that seem to be stuck
    v_ordinals integer[];      -- and those themselves
    v_nodes    record;
    v_job      record;
    v_start    record;
BEGIN
    UPDATE upkeep_rounds d
    SET due_at = v_now + p_interval
    WHERE d.kind = 'recover_jobs' AND (d.replica_id, d.begun_at) = (p_replica_id, p_taken_at);
    IF NOT FOUND THEN
        verdict := 'lost';
        RETURN;
    END IF;
    v_jobs := ARRAY(
        SELECT (j.slot, j.namespace, j.process_id)::process_key
        FROM jobs j
        WHERE j.state = 'running'
            AND (j.slot, j.namespace, j.process_id) > (p_slot, p_namespace, p_process_id)
        ORDER BY j.slot, j.namespace, j.process_id
        LIMIT p_limit);
    verdict := CASE WHEN cardinality(v_jobs) >= p_limit THEN 'more' ELSE 'whole' END;
    SELECT j.* INTO slot, namespace, process_id FROM unnest(v_jobs[cardinality(v_jobs):]) AS j;
    finds := '[]';

    -- Those that something is wrong with, as it seems.
    SELECT array_agg(i)
    INTO v_jobs
    FROM unnest(v_jobs) AS i
    JOIN jobs j USING (slot, namespace, process_id)
    WHERE j.updated_at < v_now - p_age
        AND (lacks_join(j)
            OR (j.ready > 0 AND j.beginning < 512 AND j.upkeep_due_at IS NULL)
            OR (j.running > 0 AND EXISTS (
                SELECT FROM find_stuck_nodes(i.slot, i.namespace, i.process_id)
            )));
    IF v_jobs IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg((e.slot, e.namespace, e.process_id)::process_key), array_agg(e.ordinal)
    INTO v_leaders, v_ordinals
    FROM unnest(v_jobs) AS i
    CROSS JOIN LATERAL find_stuck_nodes(i.slot, i.namespace, i.process_id) e;
    -- The leaders that are there, and locked: one that comes later is another.
    SELECT array_agg((p.slot, p.namespace, p.process_id)::process_key) FILTER (WHERE k.leads)
    INTO v_jobs
    FROM (
        SELECT k.slot, k.namespace, k.process_id, bool_or(k.leads) AS leads
        FROM (
            SELECT i.slot, i.namespace, i.process_id, true AS leads
            FROM unnest(v_jobs) AS i
            UNION ALL
            SELECT n.follower_slot, n.follower_namespace, n.follower_id, false
            FROM unnest(v_leaders, v_ordinals) AS i (slot, namespace, process_id, ordinal)
            JOIN job_nodes n USING (slot, namespace, process_id, ordinal)
        ) k
        GROUP BY k.slot, k.namespace, k.process_id
        ORDER BY k.slot, k.namespace, k.process_id
    ) k
    CROSS JOIN LATERAL (
        SELECT p.slot, p.namespace, p.process_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        FOR NO KEY UPDATE
    ) p;

    -- Who was seen and is still stuck, under the locks.
    SELECT array_agg((e.slot, e.namespace, e.process_id)::process_key) AS leaders,
        array_agg(e.ordinal) AS ordinals, array_agg(e.state) AS states,
        array_agg(e.result) AS results, array_agg(e.message) AS messages,
        array_agg(CASE WHEN e.state <> 'done' THEN 9 END) AS codes,
        array_agg(CASE WHEN e.state <> 'done' THEN 'PROCESS_FAILED' END) AS reasons,
        jsonb_agg(jsonb_build_array('node', e.slot, e.namespace, e.process_id, e.ordinal)) AS finds
    INTO v_nodes
    FROM unnest(v_leaders, v_ordinals) AS i (slot, namespace, process_id, ordinal)
    JOIN unnest(v_jobs) AS l USING (slot, namespace, process_id)
    JOIN jobs j USING (slot, namespace, process_id)
    CROSS JOIN LATERAL find_stuck_nodes(i.slot, i.namespace, i.process_id) e
    WHERE e.ordinal = i.ordinal AND j.state = 'running';
    IF v_nodes.leaders IS NOT NULL THEN
        PERFORM end_nodes(
            v_now, p_replica_id, v_nodes.leaders, v_nodes.ordinals, v_nodes.states, v_nodes.results,
            v_nodes.codes, v_nodes.reasons, v_nodes.messages);
        finds := v_nodes.finds;
    END IF;
    FOR v_job IN
        SELECT j.slot, j.namespace, j.process_id
        FROM unnest(v_jobs) AS i
        JOIN jobs j USING (slot, namespace, process_id)
        WHERE lacks_join(j)
    LOOP
        PERFORM add_join(v_now, p_replica_id, v_job.slot, v_job.namespace, v_job.process_id);
        finds := finds || jsonb_build_array(jsonb_build_array(
            'join', v_job.slot, v_job.namespace, v_job.process_id, NULL));
    END LOOP;
    FOR v_start IN
        SELECT *
        FROM start_nodes(v_now, p_replica_id, v_jobs)
    LOOP
        finds := finds || jsonb_build_array(jsonb_build_array(
            'start', v_start.leader_slot, v_start.leader_namespace, v_start.leader_id,
            v_start.node));
        effects := coalesce(effects, '[]') || jsonb_build_array(jsonb_build_array(
            v_start.namespace, v_start.process_id, v_start.task_id));
    END LOOP;
    FOR v_job IN
        UPDATE jobs j
        SET upkeep_due_at = v_now - p_age
        FROM unnest(v_jobs) AS i
        WHERE (j.slot, j.namespace, j.process_id) = (i.slot, i.namespace, i.process_id)
            AND j.upkeep_due_at IS NULL AND j.ready > 0 AND j.beginning < 512
        RETURNING j.slot, j.namespace, j.process_id
    LOOP
        finds := finds || jsonb_build_array(jsonb_build_array(
            'gated', v_job.slot, v_job.namespace, v_job.process_id, NULL));
    END LOOP;
END;
$$;
