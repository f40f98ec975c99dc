-- Notes which tasks from messages have to be answered when they end.
-- Locks: none of its own; the caller has locked the processes of the tasks.
CREATE FUNCTION request_replies(p_messages messages[], p_task_id bigint[])
RETURNS void
BY ITEM
AS $$
BEGIN
    INSERT INTO reply_requests (
        slot, namespace, process_id, task_id, kind, reply, sender_slot, sender_namespace, sender_id,
        sender_init_id, sender_task_id, number, sent_at
    )
    SELECT m.receiver_slot, m.receiver_namespace, m.receiver_id, p_task_id[m.ordinality], m.kind,
        m.reply, m.slot, m.namespace, m.process_id, m.init_task_id, m.task_id, m.number,
        m.created_at
    FROM unnest(p_messages) WITH ORDINALITY AS m;

    UPDATE processes p
    SET has_reply_requests = true
    FROM (
        SELECT DISTINCT m.receiver_slot, m.receiver_namespace, m.receiver_id
        FROM unnest(p_messages) AS m
    ) m
    WHERE (p.slot, p.namespace, p.process_id)
            = (m.receiver_slot, m.receiver_namespace, m.receiver_id)
        AND NOT p.has_reply_requests;
END;
$$;
