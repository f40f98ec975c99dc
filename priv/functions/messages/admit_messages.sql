-- Admits messages of one kind of admission, in their order: starts or requests, with constraints or without. Refuses
-- what names a gate that does not exist, and requests to a receiver with too many waiting tasks. What a receiver in
-- error would refuse is held, unless its namespace cancels what waits there; with constraints only in a call that
-- accepts nothing, since the gates of both must be locked in one order. Otherwise it is left: `gone`, as if the
-- receiver had just changed.
-- p_messages: without their args.
-- Locks: as the function that admits them.
-- Returns: a verdict for each item: that of the admission, or held, gate_not_found, overloaded; its task, if it has
-- one, and whether a worker may take that now. A row without an item has effects, as settle_gates returns them.
CREATE FUNCTION admit_messages(
    LIKE own_arguments,
    p_messages  messages[],
    p_starts    boolean,
    p_is_gated  boolean,
    p_queue_max integer
)
RETURNS TABLE (item integer, verdict text, task_id bigint, is_due boolean, effects jsonb)
BY ITEM
AS $$
DECLARE
    v          record;
    v_row      record;
    v_refused  bigint[] := '{}';
    v_held     integer[];  -- these two by the count of what is held
    v_task_ids bigint[];
    v_accepts  boolean := false;
BEGIN
    IF p_is_gated THEN
        verdict := 'gate_not_found';
        FOR item IN
            SELECT g.item
            FROM find_missing_gates(
                ARRAY(SELECT m.receiver_namespace FROM unnest(p_messages) AS m),
                ARRAY(SELECT m.constraints FROM unnest(p_messages) AS m)) g
        LOOP
            v_refused := v_refused || item::bigint;
            RETURN NEXT;
        END LOOP;
    END IF;
    IF EXISTS (SELECT FROM unnest(p_messages) AS m WHERE m.kind = 'reply') THEN
        -- A reply is for the process that has asked, not for a later one of its name.
        PERFORM
        FROM (
            SELECT m.receiver_slot AS slot, m.receiver_namespace AS namespace,
                m.receiver_id AS process_id
            FROM unnest(p_messages) AS m
            ORDER BY slot, namespace, process_id
        ) i
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            FOR NO KEY UPDATE
        ) p;
        verdict := 'process_not_found';
        FOR item IN
            SELECT m.ordinality
            FROM unnest(p_messages) WITH ORDINALITY AS m
            WHERE m.kind = 'reply' AND m.receiver_init_id IS DISTINCT FROM (
                SELECT p.init_task_id
                FROM find_process(m.receiver_slot, m.receiver_namespace, m.receiver_id) p)
        LOOP
            v_refused := v_refused || item::bigint;
            RETURN NEXT;
        END LOOP;
    END IF;
    IF NOT p_starts THEN
        verdict := 'overloaded';
        FOR item IN
            SELECT m.ordinality
            FROM find_overloaded(p_messages, p_queue_max) o
            JOIN unnest(p_messages) WITH ORDINALITY AS m
                ON (m.receiver_slot, m.receiver_namespace, m.receiver_id)
                    = (o.slot, o.namespace, o.process_id)
            WHERE m.kind <> 'reply' AND m.ordinality <> ALL (v_refused)
        LOOP
            v_refused := v_refused || item::bigint;
            RETURN NEXT;
        END LOOP;
    END IF;

    SELECT array_agg(m.ordinality ORDER BY m.place) AS item,
        array_agg(m.receiver_slot ORDER BY m.place) AS slot,
        array_agg(m.receiver_namespace ORDER BY m.place) AS namespace,
        array_agg(m.receiver_id ORDER BY m.place) AS process_id,
        array_agg(m.head ORDER BY m.place) AS head,
        array_agg(m.kind ORDER BY m.place) AS task_type,
        array_agg((
            SELECT x.args
            FROM messages x
            WHERE (x.slot, x.namespace, x.process_id, x.message_id)
                = (m.slot, m.namespace, m.process_id, m.message_id)
        ) ORDER BY m.place) AS args,
        array_agg(m.caller_context ORDER BY m.place) AS caller_context,
        array_agg(m.trace_context ORDER BY m.place) AS trace_context,
        array_agg(m.constraints ORDER BY m.place) AS constraints,
        array_agg(m.metadata ORDER BY m.place) AS metadata,
        array_agg(m.sender ORDER BY m.place) AS sender,
        array_agg(false) AS no
    INTO v
    FROM (
        SELECT m.*, min(m.place) OVER (
            PARTITION BY m.receiver_slot, m.receiver_namespace, m.receiver_id)::integer AS head
        FROM (
            SELECT m.*, row_number() OVER (ORDER BY m.ordinality) AS place,
                describe_sender(m.namespace, m.process_id, m.task_id) AS sender
            FROM unnest(p_messages) WITH ORDINALITY AS m
            WHERE m.ordinality <> ALL (v_refused)
        ) m
    ) m;
    IF v.item IS NULL THEN
        RETURN;
    END IF;

    FOR v_row IN
        SELECT a.item, a.verdict, a.task_id, true AS is_due, a.effects
        FROM admit_starts(
            p_now, p_replica_id, v.slot, v.namespace, v.process_id, v.args, v.caller_context,
            v.trace_context, NULL, NULL, NULL, NULL, NULL, v.metadata, v.no, v.no, NULL,
            v.sender, NULL) a
        WHERE p_starts AND NOT p_is_gated
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, false, a.effects
        FROM admit_gated_starts(
            p_now, p_replica_id, v.slot, v.namespace, v.process_id, v.args, v.caller_context,
            v.trace_context, NULL, NULL, NULL, NULL, NULL, v.metadata, v.no, v.no, NULL,
            v.sender, NULL, p_starvation_timeout, v.constraints) a
        WHERE p_starts AND p_is_gated
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, a.free, a.effects
        FROM admit_requests(
            p_now, p_replica_id, v.slot, v.namespace, v.process_id, v.head, v.task_type, v.args,
            v.caller_context, v.trace_context, NULL, NULL, NULL, NULL, NULL, v.no, v.no, NULL,
            v.sender) a
        WHERE NOT p_starts AND NOT p_is_gated
        UNION ALL
        SELECT a.item, a.verdict, a.task_id, false, a.effects
        FROM admit_gated_requests(
            p_now, p_replica_id, v.slot, v.namespace, v.process_id, v.head, v.task_type, v.args,
            v.caller_context, v.trace_context, NULL, NULL, NULL, NULL, NULL, v.no, v.no, NULL,
            v.sender, p_starvation_timeout, v.constraints) a
        WHERE NOT p_starts AND p_is_gated
    LOOP
        item := v.item[v_row.item];
        verdict := v_row.verdict;
        task_id := v_row.task_id;
        is_due := v_row.is_due;
        effects := v_row.effects;
        IF verdict = 'process_failed' AND (
            SELECT coalesce(n.config ->> 'on_error', 'hold') <> 'cancel'
            FROM namespaces n
            WHERE n.name = v.namespace[v_row.item]
        ) THEN
            v_held := v_held || v_row.item;
        ELSE
            v_accepts := v_accepts OR verdict = 'accepted';
            RETURN NEXT;
        END IF;
    END LOOP;

    effects := NULL;
    is_due := false;
    FOR v_row IN SELECT h.held FROM unnest(v_held) AS h (held) LOOP
        item := v.item[v_row.held];
        verdict := CASE WHEN p_is_gated AND v_accepts THEN 'gone' ELSE 'held' END;
        task_id := nextval('task_ids');
        v_task_ids := v_task_ids || task_id;
        RETURN NEXT;
    END LOOP;
    IF verdict = 'held' THEN
        item := NULL;
        effects := hold_messages(
            p_now, p_replica_id, p_starvation_timeout, v_task_ids, ARRAY(
                SELECT p_messages[v.item[h.held]] FROM unnest(v_held) AS h (held)));
        IF effects IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END IF;
END;
$$;
