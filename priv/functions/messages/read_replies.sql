-- Reads the replies that a process waits for, and those that others wait for from it: of each the first p_limit, in the
-- order in which their messages were sent. Of the messages that were not delivered yet, the first 1,000 are read.
-- Locks: none. STABLE: all of it sees one snapshot.
-- Returns: [awaited or null, requested or null].
CREATE FUNCTION read_replies(
    p_limit        integer,
    p_slot         smallint,
    p_namespace    text,
    p_process_id   text,
    p_init_task_id bigint
)
RETURNS json
STABLE
BY INDEX
SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN json_build_array(
        (
            SELECT json_agg(json_build_array(
                a.reply, a.kind, a.namespace, a.process_id, a.task_id, a.number,
                (extract(epoch FROM a.sent_at) * 1000000)::bigint, a.receiver_task_id
            ) ORDER BY a.task_id, a.number)
            FROM (
                (SELECT q.reply, q.kind, q.namespace, q.process_id, q.sender_task_id AS task_id,
                    q.number, q.sent_at, q.task_id AS receiver_task_id
                FROM reply_requests q
                WHERE (q.sender_slot, q.sender_namespace, q.sender_id, q.sender_init_id)
                    = (p_slot, p_namespace, p_process_id, p_init_task_id)
                ORDER BY q.sender_slot, q.sender_namespace, q.sender_id, q.sender_init_id,
                    q.sender_task_id, q.number
                LIMIT p_limit)
                UNION ALL
                SELECT m.reply, m.kind, m.receiver_namespace, m.receiver_id, m.task_id, m.number,
                    m.created_at, NULL
                FROM (
                    SELECT m.reply, m.kind, m.receiver_namespace, m.receiver_id, m.task_id,
                        m.number, m.created_at, m.init_task_id
                    FROM messages m
                    WHERE (m.slot, m.namespace, m.process_id)
                        = (p_slot, p_namespace, p_process_id)
                    ORDER BY m.slot, m.namespace, m.process_id, m.message_id
                    LIMIT 1000
                ) m
                WHERE m.reply IS NOT NULL AND m.init_task_id = p_init_task_id
                ORDER BY task_id, number
                LIMIT p_limit
            ) a
        ),
        (
            SELECT json_agg(json_build_array(
                q.reply, q.kind, q.sender_namespace, q.sender_id, q.sender_task_id, q.number,
                (extract(epoch FROM q.sent_at) * 1000000)::bigint, q.task_id
            ) ORDER BY q.task_id)
            FROM (
                SELECT q.*
                FROM reply_requests q
                WHERE (q.slot, q.namespace, q.process_id) = (p_slot, p_namespace, p_process_id)
                ORDER BY q.slot, q.namespace, q.process_id, q.task_id
                LIMIT p_limit
            ) q
            -- A sender that has ended waits for nothing.
            CROSS JOIN LATERAL find_process(q.sender_slot, q.sender_namespace, q.sender_id) s
            WHERE s.init_task_id = q.sender_init_id AND s.status <> 'finished'
        ));
END;
$$;
