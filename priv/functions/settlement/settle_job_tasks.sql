-- Settles leased tasks of processes that lead or follow in jobs, as settle_tasks does, and updates the graphs of the
-- jobs in the same transaction: a follower that has ended ends its node, whose successors are started or skipped; a
-- leader's new nodes are added; a leader that has ended ends its job. A worker that has nothing to continue with
-- gets the init of another ready node of its namespace, without a claim.
--
-- The arguments are those of settle_tasks, and then
--   p_leader_*, p_node  of a follower: its leader, and its ordinal there
--   p_leads             whether the item leads a job, or will by this step
--   p_fails_job         whether the jobs that it leads and follows in fail as a whole: a schedule has started them,
--                       and they have lost a replica (fail_jobs)
--   l_item              the items that add nodes; see added_nodes
-- Locks: processes in key order, the leaders among them; then as settle_tasks; then of the jobs of those leaders:
-- jobs, job_nodes; and new processes, inserted in key order.
-- Returns: the rows of settle_tasks, and more rows, each with one of these columns:
--   started      the follower that the worker of an item continues with; next_* describe its init:
--                [slot, namespace, process_id, leader_slot, leader_namespace, leader_id, node, options]
--   effects      as in settle_tasks; without an item
--   job_effects  without an item; each key null where there is nothing:
--                "due"        [[slot, namespace, process_id, task_id], ...] tasks that are due at once
--                "upkeep"     [[slot, namespace, process_id], ...] jobs that maintain_job has to look at
--                "cancelled"  [[slot, namespace, process_id, tasks], ...] of processes that were stopped
--                "failed"     [[slot, namespace, process_id], ...] jobs that were failed as a whole
CREATE FUNCTION settle_job_tasks(
    LIKE settle_tasks,
    p_leader_slot      smallint[],
    p_leader_namespace text[],
    p_leader_id        text[],
    p_node             integer[],
    p_leads            boolean[],
    p_fails_job        boolean[],
    l_item             integer[],
    LIKE added_nodes
)
RETURNS SETOF settled_task
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_row        settled_task;
    v_item       integer;
    v_now        timestamptz;
    v_gone       process_key[];  -- keys without a process
    v_continues  double precision[] := p_expires_after;
    v_ended      integer[];   -- items that follow in a job which has ended
    v_settled    boolean[];
    v_statuses   process_status[];  -- null of a process that is gone
    v_free       integer[];   -- items whose workers have nothing to go on with
    v_until      double precision[];
    v_namespaces text[];
    v_due        jsonb[];
    v_joins      jsonb[];
    v_upkeep     jsonb;
    v_leaders    process_key[];
    v_start      record;
    v_stopped    halted;
    v_lost       halted;  -- jobs that failed as a whole
    v_replicas   bigint[];    -- that have the leases of items which follow
BEGIN
    SELECT array_agg((k.slot, k.namespace, k.process_id)::process_key)
        FILTER (WHERE p.process_row IS NULL)
    INTO v_gone
    FROM (
        SELECT k.slot, k.namespace, k.process_id
        FROM (
            SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
                unnest(p_process_id) AS process_id
            UNION
            SELECT unnest(p_leader_slot), unnest(p_leader_namespace), unnest(p_leader_id)
        ) k
        WHERE k.process_id IS NOT NULL
        ORDER BY k.slot, k.namespace, k.process_id
    ) k
    LEFT JOIN LATERAL (
        SELECT p.ctid AS process_row
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        FOR NO KEY UPDATE
    ) p ON true;
    v_now := coalesce(p_now, clock_timestamp());

    -- A leader that was already removed could not be locked. A process of that name which appears now is
    -- another one, with another job.
    IF v_gone IS NOT NULL THEN
        FOR v_item IN
            SELECT i.item::integer
            FROM unnest(p_leader_slot, p_leader_namespace, p_leader_id) WITH ORDINALITY
                AS i (slot, namespace, process_id, item)
            JOIN unnest(v_gone) AS g USING (slot, namespace, process_id)
        LOOP
            p_leader_slot[v_item] := NULL;
            p_leader_namespace[v_item] := NULL;
            p_leader_id[v_item] := NULL;
            p_node[v_item] := NULL;
        END LOOP;
    END IF;

    IF p_fails_job IS NOT NULL THEN
        v_lost := fail_lost_jobs(
            v_now, p_replica_id, p_starvation_timeout, p_fails_job, p_slot, p_namespace,
            p_process_id, p_token, p_leads, p_leader_slot, p_leader_namespace, p_leader_id, p_node);
    END IF;

    -- In a job that has ended nothing goes on after the step in hand.
    SELECT array_agg(i.item::integer)
    INTO v_ended
    FROM unnest(p_leader_id) WITH ORDINALITY AS i (leader_id, item)
    CROSS JOIN LATERAL find_job(p_leader_slot[i.item], p_leader_namespace[i.item], i.leader_id) j
    WHERE i.leader_id IS NOT NULL AND j.state <> 'running';
    FOREACH v_item IN ARRAY coalesce(v_ended, '{}') LOOP
        p_expires_after[v_item] := NULL;
    END LOOP;

    IF p_node IS NOT NULL THEN
        v_replicas := ARRAY(
            SELECT (
                SELECT r.replica_id
                FROM running r
                WHERE p_node[i.item] IS NOT NULL
                    AND (r.slot, r.namespace, r.process_id)
                        = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
            )
            FROM generate_subscripts(p_slot, 1) AS i (item)
            ORDER BY i.item);
    END IF;

    FOR v_row IN
        SELECT *
        FROM settle_tasks(
            v_now, p_replica_id, p_grace, p_slot, p_namespace, p_process_id, p_token, p_outcome,
            p_expires_after, p_response, p_aux_state, p_metadata, p_result, p_retry_after,
            p_attempt_count, p_error_code, p_error_reason, p_error_message, p_error_rejected,
            p_error_metadata, p_timer, p_timer_at, p_timer_after, p_timer_args, p_timer_trace,
            p_timer_timeout, p_history_after, p_history_limit, p_history_backward, p_events_until,
            e_payload, e_format_version, e_metadata, p_starvation_timeout, p_timer_constraints, p_cancels,
            p_state_version,
            m_item, m_number, m_kind, m_slot, m_namespace, m_process_id, m_args, m_caller_context,
            m_trace_context, m_constraints, m_metadata, p_timers, m_reply, p_failure, p_tried_for)
    LOOP
        RETURN NEXT v_row;
        v_item := v_row.item;
        CONTINUE WHEN v_item IS NULL;
        v_settled[v_item] := true;
        v_statuses[v_item] := v_row.process_status;
        IF v_row.next_task_id IS NULL AND v_continues[v_item] IS NOT NULL
            AND p_node[v_item] IS NOT NULL
        THEN
            v_free := array_append(v_free, v_item);
            v_until := array_append(v_until, v_continues[v_item]);
            v_namespaces := array_append(v_namespaces, p_namespace[v_item]);
        END IF;
    END LOOP;
    IF v_settled IS NULL THEN
        RETURN;
    END IF;

    IF l_item IS NOT NULL THEN
        PERFORM add_nodes(
            v_now, p_replica_id, array_agg(coalesce(v_settled[i.item], false) ORDER BY i.place),
            array_agg(p_slot[i.item] ORDER BY i.place),
            array_agg(p_namespace[i.item] ORDER BY i.place),
            array_agg(p_process_id[i.item] ORDER BY i.place), l_deadline_at, l_timeout,
            l_schedule_id, l_caller_context, l_trace_context, g_leader, g_ordinal, g_name, g_slot,
            g_namespace, g_process_id, g_args, g_options, g_constraints, g_predecessors,
            g_successors, a_leader, a_ordinal, a_successors)
        FROM unnest(l_item) WITH ORDINALITY AS i (item, place);
    END IF;
    IF p_leader_id IS NOT NULL THEN
        v_stopped := settle_nodes(
            v_now, p_replica_id, p_starvation_timeout, v_settled, v_statuses, v_ended, p_slot,
            p_namespace, p_process_id, p_outcome, p_response, p_result, p_error_code,
            p_error_reason, p_error_message, p_leader_slot, p_leader_namespace, p_leader_id, p_node,
            v_replicas);
    END IF;
    IF p_leads IS NOT NULL THEN
        PERFORM settle_leaders(
            v_now, p_replica_id, v_settled, p_slot, p_namespace, p_process_id, p_outcome,
            p_error_message, p_leads);
    END IF;

    -- Whatever is ready now, in any of the jobs.
    SELECT array_agg((k.slot, k.namespace, k.process_id)::process_key)
    INTO v_leaders
    FROM (
        SELECT unnest(p_leader_slot) AS slot, unnest(p_leader_namespace) AS namespace,
            unnest(p_leader_id) AS process_id
        UNION
        SELECT p_slot[i.item], p_namespace[i.item], p_process_id[i.item]
        FROM unnest(p_leads) WITH ORDINALITY AS i (leads, item)
        WHERE i.leads AND v_settled[i.item]
    ) k
    WHERE k.process_id IS NOT NULL;
    FOR v_start IN
        SELECT *
        FROM start_nodes(v_now, p_replica_id, v_leaders, v_free, v_namespaces, v_until)
    LOOP
        IF v_start.item IS NULL THEN
            v_due := array_append(v_due, jsonb_build_array(
                v_start.slot, v_start.namespace, v_start.process_id, v_start.task_id));
            CONTINUE;
        END IF;
        v_row := NULL;
        v_row.item := v_start.item;
        v_row.settled_at := v_now;
        v_row.started := jsonb_build_array(
            v_start.slot, v_start.namespace, v_start.process_id, v_start.leader_slot,
            v_start.leader_namespace, v_start.leader_id, v_start.node, v_start.options);
        v_row.next_task_id := v_start.task_id;
        v_row.next_task_type := 'init';
        v_row.next_attempt := 1;
        v_row.next_token := v_start.token;
        v_row.next_args := v_start.args;
        v_row.next_caller_context := v_start.caller_context;
        v_row.next_trace_context := v_start.trace_context;
        v_row.next_scheduled_at := v_now;
        v_row.next_first_started_at := v_now;
        RETURN NEXT v_row;
    END LOOP;

    -- What a replica should look at: the leaders that have a join, jobs with something to maintain.
    SELECT array_agg(jsonb_build_array(l.slot, l.namespace, l.process_id, j.join_task_id))
            FILTER (WHERE t.is_due),
        jsonb_agg(jsonb_build_array(l.slot, l.namespace, l.process_id))
            FILTER (WHERE j.upkeep_due_at IS NOT NULL)
    INTO v_joins, v_upkeep
    FROM unnest(v_leaders) AS l
    CROSS JOIN LATERAL find_job(l.slot, l.namespace, l.process_id) j
    LEFT JOIN LATERAL (
        SELECT s.due_at IS NOT NULL AS is_due
        FROM schedule s
        WHERE j.waiting + j.ready + j.running = 0
            AND (s.slot, s.namespace, s.process_id, s.task_id)
                = (l.slot, l.namespace, l.process_id, j.join_task_id)
        OFFSET 0
    ) t ON true;
    v_due := v_due || v_joins;
    v_upkeep := merge_json(v_upkeep, v_stopped.jobs);
    v_stopped := merge_halted(v_lost, v_stopped);
    v_row := NULL;
    IF v_stopped.effects IS NOT NULL THEN
        v_row.effects := v_stopped.effects;
        RETURN NEXT v_row;
        v_row.effects := NULL;
    END IF;
    IF v_due IS NOT NULL OR v_upkeep IS NOT NULL OR v_stopped.cancelled IS NOT NULL
        OR v_lost.jobs IS NOT NULL
    THEN
        v_row.settled_at := v_now;
        v_row.job_effects := jsonb_build_object(
            'due', to_jsonb(v_due), 'upkeep', v_upkeep, 'cancelled', v_stopped.cancelled,
            'failed', v_lost.jobs);
        RETURN NEXT v_row;
    END IF;
END;
$$;
