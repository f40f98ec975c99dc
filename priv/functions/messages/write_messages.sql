-- Writes the messages of a batch's steps whose leases hold, for deliver_messages. Of one process, the ids grow in the
-- order of its settlements: they are drawn under its lock.
-- m_item: the item that sends the message; m_number: the message's place in the step, from 1.
-- Locks: none of its own; the caller has locked the processes.
CREATE FUNCTION write_messages(
    p_now            timestamptz,
    p_slot           smallint[],
    p_namespace      text[],
    p_process_id     text[],
    p_token          bigint[],
    m_item           integer[],
    m_number         integer[],
    m_kind           text[],
    m_slot           smallint[],
    m_namespace      text[],
    m_process_id     text[],
    m_args           bytea[],
    m_caller_context json[],
    m_trace_context  json[],
    m_constraints    json[],
    m_metadata       jsonb[],
    m_reply          text[]
)
RETURNS void
BY ITEM
AS $$
BEGIN
    INSERT INTO messages (
        slot, namespace, process_id, message_id, init_task_id, task_id, number, kind, receiver_slot,
        receiver_namespace, receiver_id, args, caller_context, trace_context, constraints, metadata,
        reply, created_at, deliver_at
    )
    SELECT s.slot, s.namespace, s.process_id, nextval('message_ids'), s.init_task_id, s.task_id,
        m_number[s.place], m_kind[s.place], m_slot[s.place], m_namespace[s.place],
        m_process_id[s.place], m_args[s.place], m_caller_context[s.place], m_trace_context[s.place],
        m_constraints[s.place], m_metadata[s.place], m_reply[s.place], p_now, p_now
    FROM (
        SELECT m.place, r.slot, r.namespace, r.process_id, r.task_id, p.init_task_id
        FROM (
            SELECT unnest(m_item) AS item, generate_subscripts(m_item, 1) AS place
        ) m
        CROSS JOIN LATERAL (
            SELECT r.slot, r.namespace, r.process_id, r.task_id
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                = (p_slot[m.item], p_namespace[m.item], p_process_id[m.item])
                AND r.token = p_token[m.item]
            OFFSET 0
        ) r
        CROSS JOIN LATERAL find_process(r.slot, r.namespace, r.process_id) p
        ORDER BY m.place
    ) s;

    UPDATE processes p
    SET has_asked = true
    FROM (
        SELECT DISTINCT m.item
        FROM unnest(m_item, m_reply) AS m (item, reply)
        WHERE m.reply IS NOT NULL
    ) m
    WHERE (p.slot, p.namespace, p.process_id)
            = (p_slot[m.item], p_namespace[m.item], p_process_id[m.item])
        AND NOT p.has_asked;
END;
$$;
