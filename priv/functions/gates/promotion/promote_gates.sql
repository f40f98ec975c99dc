-- Promotes tasks from the queues that wait for the given gates, and from the given new queues, as long as there are
-- free places, with at most p_limit tries. The best head of all queues is tried first; otherwise a later task could
-- take an earlier one's place. Each head is read again before it is tried, since a promotion may change others.
-- Locks: the caller has locked the given orders and gates; everything else is locked with SKIP LOCKED.
-- Returns: effects in the form of settle_gates: tasks that are available now; without a task, what must be looked
-- at again, since another transaction had a row locked, or the limit was reached.
CREATE FUNCTION promote_gates(
    LIKE own_arguments,
    p_limit           integer,
    p_gate_namespace  text[],
    p_gate            text[],
    p_queue_namespace text[],
    p_queue           text[]
)
RETURNS jsonb[]
AS $$
DECLARE
    v_effects jsonb[];
    v_sources promoting[];
    v_source  promoting;
    v_tried   record;
    v_verdict text;
    v_place   integer;
    v_known   integer;  -- the place of which the head has just been looked at
    v_gate    text;
    v_count   integer := 0;
BEGIN
    SELECT array_agg(find_best_head(p_now, p_starvation_timeout, s.namespace, s.gate, s.queue))
    INTO v_sources
    FROM (
        SELECT DISTINCT g.namespace, g.gate, NULL AS queue
        FROM unnest(p_gate_namespace, p_gate) AS g (namespace, gate)
        UNION ALL
        SELECT DISTINCT l.namespace, NULL, l.queue
        FROM unnest(p_queue_namespace, p_queue) AS l (namespace, queue)
    ) s;

    LOOP
        IF cardinality(v_sources) = 1 THEN
            v_place := CASE WHEN (v_sources[1]).queue IS NOT NULL THEN 1 END;
            v_known := v_place;
        ELSE
            SELECT s.place
            INTO v_place
            FROM unnest(v_sources) WITH ORDINALITY
                AS s (namespace, gate, queue, aged_at, aged_id, priority, task_id, place)
            WHERE s.queue IS NOT NULL
            ORDER BY s.aged_at, s.aged_id, s.priority, s.task_id
            LIMIT 1;
        END IF;
        EXIT WHEN v_place IS NULL;
        v_source := v_sources[v_place];
        IF v_known IS DISTINCT FROM v_place THEN
            v_known := v_place;
            v_sources[v_place] := find_best_head(
                p_now, p_starvation_timeout, v_source.namespace, v_source.gate, v_source.queue);
            CONTINUE WHEN v_sources[v_place] IS DISTINCT FROM v_source;
        END IF;

        v_verdict := 'again';
        IF v_count < p_limit THEN
            v_count := v_count + 1;
            v_tried := try_gate_queue(
                p_now, p_replica_id, p_starvation_timeout, v_source.namespace, v_source.queue);
            v_verdict := v_tried.verdict;
            IF v_verdict = 'promoted' THEN
                v_effects := array_append(v_effects, jsonb_build_array(
                    v_source.namespace, v_tried.process_id, v_tried.task_id));
            END IF;
            v_effects := v_effects || ARRAY(
                SELECT jsonb_build_array(v_source.namespace, NULL, NULL, NULL, NULL, o.order_key)
                FROM unnest(v_tried.orders) AS o (order_key));
        END IF;
        IF v_verdict = 'again' THEN
            v_effects := array_append(v_effects, jsonb_build_array(
                v_source.namespace, NULL, NULL, v_source.gate,
                CASE WHEN v_source.gate IS NULL THEN v_source.queue END));
            v_source.queue := NULL;
            v_sources[v_place] := v_source;
            CONTINUE;
        END IF;
        v_sources[v_place] := find_best_head(
            p_now, p_starvation_timeout, v_source.namespace, v_source.gate, v_source.queue);
        FOREACH v_gate IN ARRAY coalesce(v_tried.freed, '{}') LOOP
            SELECT coalesce(min(s.place), cardinality(v_sources) + 1)
            INTO v_place
            FROM unnest(v_sources) WITH ORDINALITY
                AS s (namespace, gate, queue, aged_at, aged_id, priority, task_id, place)
            WHERE (s.namespace, s.gate) = (v_source.namespace, v_gate);
            v_sources[v_place] := find_best_head(
                p_now, p_starvation_timeout, v_source.namespace, v_gate, NULL);
        END LOOP;
    END LOOP;
    RETURN v_effects;
END;
$$;
