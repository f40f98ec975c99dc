-- Notes messages that were refused, for Trace, while their senders exist.
-- Locks: senders with KEY SHARE and SKIP LOCKED; of one that is being removed nothing is noted.
CREATE FUNCTION refuse_messages(p_now timestamptz, p_messages messages[], p_reason text[])
RETURNS void
BY ITEM
AS $$
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
        FOR KEY SHARE SKIP LOCKED
    ) p;
END;
$$;
