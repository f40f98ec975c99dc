-- Answers messages that were refused with the error, if their senders want a reply, and notes the others for Trace,
-- while their senders exist. A reply that is refused is dropped.
-- Locks: senders with KEY SHARE and NOWAIT, since processes are locked already. Where another transaction is about to
-- end or to remove a sender, nothing is delivered, and the messages come again.
-- Returns: as describe_senders; null: nothing is to be delivered.
CREATE FUNCTION refuse_messages(p_now timestamptz, p_messages messages[], p_reason text[])
RETURNS jsonb
BY ITEM
AS $$
DECLARE
    v_senders process_key[];
BEGIN
    INSERT INTO refused_messages (
        slot, namespace, process_id, task_id, number, kind, receiver_namespace, receiver_id,
        reason, refused_at
    )
    SELECT m.slot, m.namespace, m.process_id, m.task_id, m.number, m.kind, m.receiver_namespace,
        m.receiver_id, p_reason[m.ordinality], p_now
    FROM unnest(p_messages) WITH ORDINALITY AS m
    CROSS JOIN LATERAL (
        SELECT p.process_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (m.slot, m.namespace, m.process_id)
            AND p.init_task_id = m.init_task_id
        FOR KEY SHARE NOWAIT
    ) p
    WHERE m.reply IS NULL AND m.kind <> 'reply';

    WITH written AS (
        INSERT INTO messages (
            slot, namespace, process_id, message_id, init_task_id, task_id, number, kind,
            receiver_slot, receiver_namespace, receiver_id, receiver_init_id, args, created_at,
            deliver_at
        )
        SELECT m.receiver_slot, m.receiver_namespace, m.receiver_id, nextval('message_ids'), 0, 0, 0,
            'reply', m.slot, m.namespace, m.process_id, m.init_task_id,
            convert_to((describe_error(
                CASE
                    WHEN p_reason[m.ordinality] LIKE '%NOT_FOUND' THEN 5
                    WHEN p_reason[m.ordinality] LIKE '%ALREADY_EXISTS' THEN 6
                    WHEN p_reason[m.ordinality] = 'OVERLOADED' THEN 8
                    ELSE 9
                END, p_reason[m.ordinality], 'the message was refused'
            ) || jsonb_build_object(
                'name', m.reply, 'kind', m.kind, 'namespace', m.receiver_namespace,
                'process_id', m.receiver_id, 'task_id', m.task_id, 'number', m.number
            ))::text, 'UTF8'),
            p_now, p_now
        FROM unnest(p_messages) WITH ORDINALITY AS m
        WHERE m.reply IS NOT NULL
        RETURNING slot, namespace, process_id
    )
    SELECT array_agg(DISTINCT (w.slot, w.namespace, w.process_id)::process_key)
    INTO v_senders
    FROM written w;
    RETURN describe_senders(v_senders);
END;
$$;
