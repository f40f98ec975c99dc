-- Delivers messages of the given senders: admits each as a task of its receiver and deletes it, in one transaction,
-- so that each is applied exactly once. Of a sender, messages to one receiver are delivered in the order of their
-- ids; one that has to wait keeps the later ones back, and nothing else.
--
-- A message is locked before it is looked at, and only with SKIP LOCKED: one whose predecessor is locked by another
-- transaction, or is not due, stays. A call delivers messages of one kind of admission (starts or requests, with
-- constraints or without), and at most one start of a receiver; the caller calls again while messages remain.
--
-- A receiver in error has the task held, unless its namespace cancels what waits there. A message that is refused for
-- another reason is answered with the error or noted for Trace (refuse_messages).
-- A batch has p_limit messages and p_bytes_max bytes at most, but at least one message. What is passed around of them
-- is without their args, which are large; the admission reads these once.
-- p_queue_max: a receiver with so many waiting tasks refuses further messages.
-- Locks: messages with SKIP LOCKED, then as the function that admits them.
-- Returns: the number of messages by kind, namespace of the sender and verdict; then a row with the senders that have
-- more messages to be delivered now, and the effects as settle_gates returns them.
CREATE FUNCTION deliver_messages(
    LIKE own_arguments,
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_limit      integer,
    p_bytes_max  bigint,
    p_queue_max  integer
)
RETURNS TABLE (
    kind text, namespace text, verdict text, message_count bigint, remaining jsonb, effects jsonb
)
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_locked   bigint[];
    v_deferred bigint[];
    v_messages messages[];
    v_starts   boolean;
    v_is_gated boolean;
    v_row      record;
    v_message  messages;
    v_done     messages[] := '{}';
    v_verdicts text[] := '{}';
    v_refused  messages[] := '{}';
    v_reasons  text[] := '{}';
    v_due      jsonb[] := '{}';
    v_asking   messages[] := '{}';  -- these two of messages that want a reply
    v_task_ids bigint[] := '{}';
BEGIN
    SELECT array_agg(m.message_id)
    INTO v_locked
    FROM (
        SELECT m.message_id
        FROM unnest(p_slot, p_namespace, p_process_id) AS k (slot, namespace, process_id)
        CROSS JOIN LATERAL (
            SELECT m.message_id
            FROM messages m
            WHERE (m.slot, m.namespace, m.process_id) = (k.slot, k.namespace, k.process_id)
                AND m.deliver_at <= v_now
            ORDER BY m.slot, m.namespace, m.process_id, m.message_id
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ) m
        LIMIT p_limit
    ) m;

    -- With a new snapshot: what others have delivered meanwhile is gone. All are admitted by one function, which
    -- takes its locks in order: that of the oldest message.
    WITH found AS (
        SELECT m.*
        FROM unnest(p_slot, p_namespace, p_process_id) AS k (slot, namespace, process_id)
        CROSS JOIN LATERAL (
            SELECT m.slot, m.namespace, m.process_id, m.message_id, m.receiver_slot,
                m.receiver_namespace, m.receiver_id, m.deliver_at, m.kind = 'start' AS starts,
                m.constraints IS NOT NULL AS is_gated,
                octet_length(m.args) + coalesce(pg_column_size(m.metadata), 0) AS size
            FROM messages m
            WHERE (m.slot, m.namespace, m.process_id) = (k.slot, k.namespace, k.process_id)
            ORDER BY m.slot, m.namespace, m.process_id, m.message_id
            LIMIT greatest(p_limit * 4, 800)
        ) m
    ),
    marked AS (
        SELECT f.*,
            f.message_id = ANY (v_locked)
                AND f.starts = first_value(f.starts) OVER pair
                AND f.is_gated = first_value(f.is_gated) OVER pair
                AND (NOT f.starts OR row_number() OVER (
                    PARTITION BY f.starts, f.receiver_slot, f.receiver_namespace, f.receiver_id
                    ORDER BY f.message_id) = 1) AS fits,
            f.message_id = ANY (v_locked) AND first_value(f.deliver_at) OVER pair > v_now AS is_deferred
        FROM found f
        WINDOW pair AS (
            PARTITION BY f.slot, f.namespace, f.process_id, f.receiver_slot, f.receiver_namespace,
                f.receiver_id
            ORDER BY f.message_id)
    ),
    following AS (
        SELECT m.slot, m.namespace, m.process_id, m.message_id, m.starts, m.is_gated, m.size,
            bool_and(m.fits) OVER (
                PARTITION BY m.slot, m.namespace, m.process_id, m.receiver_slot,
                    m.receiver_namespace, m.receiver_id
                ORDER BY m.message_id) AS is_next
        FROM marked m
    ),
    oldest AS (
        SELECT f.starts, f.is_gated
        FROM following f
        WHERE f.is_next
        ORDER BY f.message_id
        LIMIT 1
    ),
    counted AS (
        SELECT f.*, sum(f.size) OVER (ORDER BY f.message_id) AS size_so_far,
            row_number() OVER (ORDER BY f.message_id) AS place
        FROM following f
        JOIN oldest o USING (starts, is_gated)
        WHERE f.is_next
    )
    SELECT array_agg((
            m.slot, m.namespace, m.process_id, m.message_id, m.init_task_id, m.task_id, m.number,
            m.kind, m.receiver_slot, m.receiver_namespace, m.receiver_id, NULL, m.caller_context,
            m.trace_context, m.constraints, m.metadata, m.created_at, m.deliver_at, m.reply,
            m.receiver_init_id
        )::messages ORDER BY c.place), bool_and(c.starts), bool_and(c.is_gated),
        (SELECT array_agg(m.message_id) FROM marked m WHERE m.is_deferred)
    INTO v_messages, v_starts, v_is_gated, v_deferred
    FROM counted c
    JOIN messages m
        ON (m.slot, m.namespace, m.process_id, m.message_id)
            = (c.slot, c.namespace, c.process_id, c.message_id)
    WHERE c.place = 1 OR c.size_so_far <= p_bytes_max;

    IF v_deferred IS NOT NULL THEN
        -- They are behind a message that was deferred, and so are not due before it.
        UPDATE messages m
        SET deliver_at = (
            SELECT f.deliver_at
            FROM messages f
            WHERE (f.slot, f.namespace, f.process_id) = (m.slot, m.namespace, m.process_id)
                AND (f.receiver_slot, f.receiver_namespace, f.receiver_id)
                    = (m.receiver_slot, m.receiver_namespace, m.receiver_id)
            ORDER BY f.slot, f.namespace, f.process_id, f.message_id
            LIMIT 1)
        FROM unnest(p_slot, p_namespace, p_process_id) AS k (slot, namespace, process_id)
        WHERE (m.slot, m.namespace, m.process_id) = (k.slot, k.namespace, k.process_id)
            AND m.message_id = ANY (v_deferred);
    END IF;

    FOR v_row IN
        SELECT *
        FROM admit_messages(
            p_now, p_replica_id, p_starvation_timeout, v_messages, v_starts, v_is_gated, p_queue_max)
        WHERE v_messages IS NOT NULL
    LOOP
        effects := merge_json(effects, v_row.effects);
        CONTINUE WHEN v_row.item IS NULL;
        v_message := v_messages[v_row.item];
        -- Removed since, and perhaps started again: to be looked at again.
        CONTINUE WHEN v_row.verdict = 'gone';
        v_done := v_done || v_message;
        v_verdicts := v_verdicts || v_row.verdict;
        IF v_row.verdict NOT IN ('accepted', 'held') THEN
            v_refused := v_refused || v_message;
            v_reasons := v_reasons || upper(v_row.verdict);
        ELSIF v_row.is_due THEN
            v_due := v_due || jsonb_build_array(
                v_message.receiver_namespace, v_message.receiver_id, v_row.task_id);
        END IF;
        IF v_row.verdict IN ('accepted', 'held') AND v_message.reply IS NOT NULL THEN
            v_asking := v_asking || v_message;
            v_task_ids := v_task_ids || v_row.task_id;
        END IF;
    END LOOP;

    IF cardinality(v_refused) > 0 THEN
        effects := merge_json(effects, refuse_messages(v_now, v_refused, v_reasons));
    END IF;
    IF cardinality(v_asking) > 0 THEN
        PERFORM request_replies(v_asking, v_task_ids);
    END IF;

    RETURN QUERY
    WITH done AS (
        DELETE FROM messages m
        USING unnest(v_done) WITH ORDINALITY AS d
        WHERE (m.slot, m.namespace, m.process_id, m.message_id)
            = (d.slot, d.namespace, d.process_id, d.message_id)
        RETURNING m.kind, m.namespace, v_verdicts[d.ordinality] AS verdict
    )
    SELECT d.kind, d.namespace, d.verdict, count(*), NULL::jsonb, NULL::jsonb
    FROM done d
    GROUP BY d.kind, d.namespace, d.verdict;

    effects := merge_json(effects, NULLIF(to_jsonb(v_due), '[]'));
    remaining := (
        SELECT jsonb_agg(jsonb_build_array(k.slot, k.namespace, k.process_id))
        FROM unnest(p_slot, p_namespace, p_process_id) AS k (slot, namespace, process_id)
        WHERE (
            SELECT m.message_id
            FROM messages m
            WHERE (m.slot, m.namespace, m.process_id) = (k.slot, k.namespace, k.process_id)
                AND m.deliver_at <= v_now
            ORDER BY m.slot, m.namespace, m.process_id, m.message_id
            LIMIT 1
        ) IS NOT NULL);
    RETURN NEXT;
END;
$$;
