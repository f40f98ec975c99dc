-- Runs schedules: starts their targets, records the runs and advances the schedules to their next instants, in one
-- transaction under their locks. So each instant runs once, even if several replicas try. An item is a schedule, at
-- most once in a batch, as the caller has read it: at p_revision, due at p_next_at (null: a trigger or a queued run,
-- which do not depend on it); if it has changed since, the item changes nothing. `decide` in
-- domain/schedules/schedule.py lists the results. Instants that no replica ran in time are one item with a
-- p_missed_count. All items have one p_kind, start, job, request, gated_start or gated_request, so that one
-- statement can lock the processes in key order.
-- Locks: schedules in key order; then as admit_starts, admit_jobs, admit_requests and their gated variants.
-- Returns: one row per item: started, queued, skipped, refused, missed; waits (queued before, and still is), known
-- (this instant or trigger has run before), changed. For gated ones one row more, without an item, with the effects
-- of settle_gates.
CREATE FUNCTION run_schedules(
    LIKE own_arguments,
    p_kind            text,
    p_slot            smallint[],
    p_namespace       text[],
    p_schedule_id     text[],
    p_revision        bigint[],
    p_next_at         timestamptz[],
    p_cause           text[],
    p_overlap_policy  text[],
    p_was_queued      boolean[],
    p_instant         timestamptz[],
    p_due_at          timestamptz[],
    p_then_instant    timestamptz[],
    p_then_at         timestamptz[],
    p_missed_count    bigint[],
    p_missed_until    timestamptz[],
    p_idempotency_key text[],
    p_process_slot    smallint[],
    p_process_id      text[],
    p_task_key        text[],
    p_trace_context   json[],
    p_audit           text
)
RETURNS TABLE (
    item integer, verdict text, recorded_at timestamptz, task_id bigint, is_due boolean, reason text,
    effects json
)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now     timestamptz;
    v_size    integer := cardinality(p_slot);
    v_verdict text[];      -- these by item
    v_task_id bigint[];
    v_is_due  boolean[];
    v_reason  text[];      -- of refusals; and the gate that is missing
    v_gate    text[];
    v_starts  integer[];   -- the items that start something
    v_facts   record;
    v_said    record;
BEGIN
    v_verdict := array_fill('changed'::text, ARRAY[v_size]);
    v_task_id := array_fill(NULL::bigint, ARRAY[v_size]);
    v_is_due := array_fill(false, ARRAY[v_size]);
    v_reason := array_fill(NULL::text, ARRAY[v_size]);
    v_gate := v_reason;
    FOR item IN
        SELECT i.item
        FROM (
            SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                unnest(p_namespace) AS namespace, unnest(p_schedule_id) AS schedule_id,
                unnest(p_revision) AS revision, unnest(p_next_at) AS next_at
        ) i
        JOIN schedules s USING (slot, namespace, schedule_id)
        WHERE s.revision = i.revision AND (i.next_at IS NULL OR s.next_at = i.next_at)
        ORDER BY s.slot, s.namespace, s.schedule_id
        FOR NO KEY UPDATE OF s
    LOOP
        v_verdict[item] := 'locked';
    END LOOP;
    v_now := coalesce(p_now, clock_timestamp());

    PERFORM end_runs(v_now, array_agg(i.slot), array_agg(i.namespace),
        array_agg(i.schedule_id), 100)
    FROM (
        SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
            unnest(p_schedule_id) AS schedule_id, unnest(p_overlap_policy) AS overlap_policy,
            unnest(v_verdict) AS verdict
    ) i
    WHERE i.verdict = 'locked' AND i.overlap_policy <> 'allow';

    FOR v_facts IN
        SELECT i.item, i.was_queued, i.cause, i.overlap_policy, i.missed_count,
            coalesce((
                SELECT f.state::text
                FROM schedule_runs f
                WHERE (f.slot, f.namespace, f.schedule_id, f.instant)
                    = (i.slot, i.namespace, i.schedule_id, i.instant)
            ), (
                SELECT k.state::text
                FROM schedule_runs k
                WHERE (k.slot, k.namespace, k.schedule_id, k.idempotency_key)
                    = (i.slot, i.namespace, i.schedule_id, i.idempotency_key)
            )) AS known,
            (
                SELECT true
                FROM schedule_runs w
                WHERE (w.slot, w.namespace, w.schedule_id) = (i.slot, i.namespace, i.schedule_id)
                    AND w.state = 'running'
                    -- More may have ended than were looked at above.
                    AND read_run_state(
                        w.process_slot, w.namespace, w.process_id, w.task_type, w.task_id)
                        = 'running'
                ORDER BY w.slot, w.namespace, w.schedule_id, w.instant
                LIMIT 1
            ) IS NOT NULL AS is_at_work,
            (
                SELECT true
                FROM schedule_runs q
                WHERE (q.slot, q.namespace, q.schedule_id) = (i.slot, i.namespace, i.schedule_id)
                    AND q.state = 'queued' AND q.cause <> 'backfill' AND q.instant <> i.instant
                LIMIT 1
            ) IS NOT NULL AS has_queued
        FROM (
            SELECT generate_subscripts(p_slot, 1) AS item, unnest(p_slot) AS slot,
                unnest(p_namespace) AS namespace, unnest(p_schedule_id) AS schedule_id,
                unnest(p_cause) AS cause, unnest(p_overlap_policy) AS overlap_policy,
                unnest(p_was_queued) AS was_queued, unnest(p_instant) AS instant,
                unnest(p_missed_count) AS missed_count,
                unnest(p_idempotency_key) AS idempotency_key, unnest(v_verdict) AS verdict
        ) i
        WHERE i.verdict = 'locked'
    LOOP
        v_verdict[v_facts.item] := CASE
            WHEN v_facts.was_queued AND v_facts.known IS DISTINCT FROM 'queued' THEN 'changed'
            WHEN NOT v_facts.was_queued AND v_facts.known IS NOT NULL THEN 'known'
            WHEN v_facts.missed_count IS NOT NULL THEN 'missed'
            WHEN v_facts.overlap_policy IN ('allow', 'cancel_previous') THEN 'start'
            WHEN v_facts.overlap_policy = 'skip' THEN
                CASE WHEN v_facts.is_at_work THEN 'skipped' ELSE 'start' END
            WHEN v_facts.was_queued THEN
                CASE WHEN v_facts.is_at_work THEN 'waits' ELSE 'start' END
            WHEN NOT v_facts.is_at_work AND NOT v_facts.has_queued THEN 'start'
            WHEN v_facts.cause = 'backfill' THEN 'queued'
            WHEN v_facts.is_at_work AND v_facts.has_queued THEN 'skipped'
            ELSE 'queued'
        END;
    END LOOP;

    v_starts := array_positions(v_verdict, 'start');
    IF cardinality(v_starts) > 0 THEN
        FOR v_said IN
            SELECT *
            FROM start_runs(
                v_now, p_replica_id, p_starvation_timeout, p_kind, v_starts, p_slot, p_namespace,
                p_schedule_id, p_process_slot, p_process_id, p_task_key, p_trace_context)
        LOOP
            IF v_said.item IS NULL THEN
                item := NULL;
                verdict := v_said.verdict;
                recorded_at := v_now;
                effects := v_said.effects;
                RETURN NEXT;
                effects := NULL;
            ELSIF v_said.verdict IN ('accepted', 'duplicate') THEN
                v_verdict[v_said.item] := 'started';
                v_task_id[v_said.item] := v_said.task_id;
                v_is_due[v_said.item] := v_said.is_due;
            ELSE
                v_verdict[v_said.item] := 'refused';
                v_gate[v_said.item] := v_said.gate;
                v_reason[v_said.item] := CASE v_said.verdict
                    WHEN 'key_reused' THEN 'IDEMPOTENCY_KEY_REUSED' ELSE upper(v_said.verdict) END;
            END IF;
        END LOOP;
    END IF;

    INSERT INTO schedule_runs AS f (
        slot, namespace, schedule_id, instant, cause, state, overlap_policy, due_at, recorded_at,
        started_at, process_slot, process_id, task_type, task_id, error_code, error_reason,
        error_message, missed_count, missed_until, idempotency_key
    )
    SELECT s.slot, s.namespace, s.schedule_id, i.instant, i.cause::schedule_run_cause,
        CASE i.verdict WHEN 'started' THEN 'running' ELSE i.verdict END::schedule_run_state,
        i.overlap_policy::overlap_policy, i.due_at, v_now,
        CASE WHEN i.verdict = 'started' THEN v_now END,
        CASE WHEN i.verdict IN ('started', 'refused') THEN i.process_slot END,
        CASE WHEN i.verdict IN ('started', 'refused') THEN i.process_id END,
        CASE WHEN i.verdict IN ('started', 'refused') THEN
            CASE WHEN s.target IN ('call', 'notify') THEN s.target ELSE 'init' END
        END::task_type,
        i.task_id,
        CASE WHEN i.verdict = 'refused' THEN 9 END,  -- FAILED_PRECONDITION
        i.reason,
        CASE WHEN i.verdict = 'refused' THEN describe_refusal(
            s.target, i.process_slot, i.namespace, i.process_id, i.reason, i.gate) END,
        i.missed_count, i.missed_until, i.idempotency_key
    FROM (
        SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
            unnest(p_schedule_id) AS schedule_id, unnest(p_instant) AS instant,
            unnest(p_cause) AS cause, unnest(p_overlap_policy) AS overlap_policy,
            unnest(p_due_at) AS due_at, unnest(p_process_slot) AS process_slot,
            unnest(p_process_id) AS process_id, unnest(p_missed_count) AS missed_count,
            unnest(p_missed_until) AS missed_until, unnest(p_idempotency_key) AS idempotency_key,
            unnest(v_verdict) AS verdict, unnest(v_task_id) AS task_id,
            unnest(v_reason) AS reason, unnest(v_gate) AS gate
    ) i
    JOIN schedules s USING (slot, namespace, schedule_id)
    WHERE i.verdict IN ('started', 'queued', 'skipped', 'refused', 'missed')
    ON CONFLICT ON CONSTRAINT schedule_runs_pkey DO UPDATE
    SET state = excluded.state, started_at = excluded.started_at,
        process_slot = excluded.process_slot, process_id = excluded.process_id,
        task_type = excluded.task_type, task_id = excluded.task_id,
        error_code = excluded.error_code, error_reason = excluded.error_reason,
        error_message = excluded.error_message
    WHERE f.state = 'queued';

    UPDATE schedules s
    SET claimed_until = CASE WHEN i.next_at IS NULL THEN s.claimed_until END,
        next_instant = CASE WHEN i.next_at IS NULL THEN s.next_instant ELSE i.then_instant END,
        next_at = CASE WHEN i.next_at IS NULL THEN s.next_at ELSE i.then_at END,
        started_count = s.started_count + (i.verdict = 'started')::integer,
        skipped_count = s.skipped_count + (i.verdict = 'skipped')::integer,
        missed_count = s.missed_count
            + CASE WHEN i.verdict = 'missed' THEN i.missed_count ELSE 0 END,
        refused_count = s.refused_count + (i.verdict = 'refused')::integer
    FROM (
        SELECT unnest(p_slot) AS slot, unnest(p_namespace) AS namespace,
            unnest(p_schedule_id) AS schedule_id, unnest(p_next_at) AS next_at,
            unnest(p_then_instant) AS then_instant, unnest(p_then_at) AS then_at,
            unnest(p_missed_count) AS missed_count, unnest(v_verdict) AS verdict
    ) i
    WHERE (s.slot, s.namespace, s.schedule_id) = (i.slot, i.namespace, i.schedule_id)
        AND i.verdict NOT IN ('changed', 'waits');

    -- Only a trigger has one, and is alone in its batch.
    IF v_verdict[1] NOT IN ('changed', 'known', 'waits') THEN
        PERFORM write_audit(p_audit, NULL, jsonb_build_object(
            'verdict', v_verdict[1], 'process_id', p_process_id[1], 'task_id', v_task_id[1]));
    END IF;

    recorded_at := v_now;
    FOR n IN 1 .. v_size LOOP
        item := n;
        verdict := v_verdict[item];
        task_id := v_task_id[item];
        is_due := v_is_due[item];
        reason := v_reason[item];
        RETURN NEXT;
    END LOOP;
END;
$$;
