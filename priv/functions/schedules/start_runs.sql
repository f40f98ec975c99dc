-- Admits what the runs in p_items start; the caller holds the locks of their schedules. No task is leased: those
-- that can be claimed are due at once.
-- Locks: as admit_starts, admit_jobs, admit_requests and their gated kin, by p_kind.
-- Returns: one row per item: what admission says, or gate_not_found, and which; whether it is due. For gated ones
-- one row more, without an item, whose effects are what settle_gates returns.
-- Raises a serialization failure if a process was removed at this moment: do it all again.
CREATE FUNCTION start_runs(
    LIKE own_arguments,
    p_kind         text,
    p_items        integer[],
    p_slot         smallint[],
    p_namespace    text[],
    p_schedule_id  text[],
    p_process_slot smallint[],
    p_process_id   text[],
    p_task_key     text[],
    p_trace        json[]
)
RETURNS TABLE (
    item integer, verdict text, task_id bigint, is_due boolean, gate text, effects json
)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_is_gated boolean := p_kind IN ('gated_start', 'gated_request');
    v_rows     record;
    v_items    integer[] := p_items;
    v_missing  integer[];
    v_gates    text[];     -- that they miss
    v_keys     text[];
    v_heads    integer[];  -- for each item the first of the same process
    v_said     record;
BEGIN
    IF v_is_gated THEN
        -- By the places in p_items.
        SELECT array_agg(g.item), array_agg(g.gate)
        INTO v_missing, v_gates
        FROM (
            SELECT array_agg(p_namespace[n] ORDER BY n) AS namespace,
                array_agg((
                    SELECT s.constraints
                    FROM schedules s
                    WHERE (s.slot, s.namespace, s.schedule_id)
                        = (p_slot[n], p_namespace[n], p_schedule_id[n])
                ) ORDER BY n) AS constraints
            FROM unnest(p_items) n
        ) w
        CROSS JOIN LATERAL find_missing_gates(w.namespace, w.constraints) g;
        verdict := 'gate_not_found';
        is_due := false;
        FOR n IN 1 .. coalesce(cardinality(v_missing), 0) LOOP
            item := p_items[v_missing[n]];
            gate := v_gates[n];
            v_items := array_remove(v_items, item);
            RETURN NEXT;
        END LOOP;
        IF cardinality(v_items) = 0 THEN
            RETURN;
        END IF;
        gate := NULL;
    END IF;

    SELECT array_agg(n ORDER BY n) AS items,
        array_agg(p_process_slot[n] ORDER BY n) AS slot,
        array_agg(p_namespace[n] ORDER BY n) AS namespace,
        array_agg(p_process_id[n] ORDER BY n) AS process_id,
        array_agg(s.target ORDER BY n) AS task_type,
        array_agg(s.args ORDER BY n) AS args,
        array_agg(s.caller_context ORDER BY n) AS caller_context,
        array_agg(p_trace[n] ORDER BY n) AS trace,
        array_agg(s.history_after ORDER BY n) AS history_after,
        array_agg(s.history_limit ORDER BY n) AS history_limit,
        array_agg(s.history_backward ORDER BY n) AS history_backward,
        array_agg(p_task_key[n] ORDER BY n) AS task_key,
        array_agg(s.fingerprint ORDER BY n) AS fingerprint,
        array_agg(s.metadata ORDER BY n) AS metadata,
        array_agg(s.constraints ORDER BY n) AS constraints,
        array_fill(false, ARRAY[cardinality(v_items)]) AS no,
        array_fill(NULL::double precision, ARRAY[cardinality(v_items)]) AS never
    INTO v_rows
    FROM unnest(v_items) n
    CROSS JOIN LATERAL (
        SELECT t.*
        FROM schedules t
        WHERE (t.slot, t.namespace, t.schedule_id)
            = (p_slot[n], p_namespace[n], p_schedule_id[n])
        OFFSET 0
    ) s;

    v_keys := ARRAY(
        SELECT v_rows.namespace[n] || '/' || v_rows.process_id[n]
        FROM generate_subscripts(v_items, 1) n
    );
    v_heads := ARRAY(SELECT array_position(v_keys, k) FROM unnest(v_keys) k);

    FOR v_said IN
        SELECT a.item, a.verdict, a.task_id, true AS free, NULL::json AS effects
        FROM admit_starts(
            p_now, p_replica_id, v_rows.slot, v_rows.namespace, v_rows.process_id, v_rows.args,
            v_rows.caller_context, v_rows.trace, v_rows.history_after, v_rows.history_limit,
            v_rows.history_backward, v_rows.task_key, v_rows.fingerprint, v_rows.metadata,
            v_rows.no, v_rows.no, v_rows.never, NULL, NULL) a
        WHERE p_kind = 'start'
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, true, NULL
        FROM admit_jobs(
            p_now, p_replica_id, v_rows.slot, v_rows.namespace, v_rows.process_id, v_rows.args,
            v_rows.caller_context, v_rows.trace, v_rows.history_after, v_rows.history_limit,
            v_rows.history_backward, v_rows.task_key, v_rows.fingerprint, v_rows.metadata,
            v_rows.no, v_rows.no, v_rows.never, NULL, NULL,
            array_fill('engine'::text, ARRAY[cardinality(v_items)]),
            array_fill('{"scheduled": true}'::json, ARRAY[cardinality(v_items)])) a
        WHERE p_kind = 'job'
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, a.free, NULL
        FROM admit_requests(
            p_now, p_replica_id, v_rows.slot, v_rows.namespace, v_rows.process_id, v_heads,
            v_rows.task_type, v_rows.args, v_rows.caller_context, v_rows.trace,
            v_rows.history_after, v_rows.history_limit, v_rows.history_backward, v_rows.task_key,
            v_rows.fingerprint, v_rows.no, v_rows.no, v_rows.never, NULL) a
        WHERE p_kind = 'request'
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, false, a.effects::json
        FROM admit_gated_starts(
            p_now, p_replica_id, v_rows.slot, v_rows.namespace, v_rows.process_id, v_rows.args,
            v_rows.caller_context, v_rows.trace, v_rows.history_after, v_rows.history_limit,
            v_rows.history_backward, v_rows.task_key, v_rows.fingerprint, v_rows.metadata,
            v_rows.no, v_rows.no, v_rows.never, NULL, NULL, p_starvation_timeout, v_rows.constraints) a
        WHERE p_kind = 'gated_start'
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, false, a.effects::json
        FROM admit_gated_requests(
            p_now, p_replica_id, v_rows.slot, v_rows.namespace, v_rows.process_id, v_heads,
            v_rows.task_type, v_rows.args, v_rows.caller_context, v_rows.trace,
            v_rows.history_after, v_rows.history_limit, v_rows.history_backward, v_rows.task_key,
            v_rows.fingerprint, v_rows.no, v_rows.no, v_rows.never, NULL, p_starvation_timeout,
            v_rows.constraints) a
        WHERE p_kind = 'gated_request'
    LOOP
        IF v_said.verdict = 'gone' THEN
            RAISE serialization_failure USING MESSAGE = 'a process was removed meanwhile';
        END IF;
        item := v_rows.items[v_said.item];
        verdict := v_said.verdict;
        task_id := v_said.task_id;
        is_due := v_said.verdict = 'accepted' AND v_said.free;
        effects := v_said.effects;
        RETURN NEXT;
    END LOOP;
END;
$$;
