-- name: find_overdue_messages
-- Finds senders whose oldest messages should have been delivered.
-- Locks: none.
SELECT DISTINCT d.slot, d.namespace, d.process_id
FROM (
    SELECT m.slot, m.namespace, m.process_id
    FROM progressor.messages m
    WHERE m.deliver_at <= (SELECT coalesce(%(now)s, clock_timestamp()) - %(age)s)
    ORDER BY m.deliver_at
    LIMIT %(limit)s
) d

-- name: defer_messages
-- Delays the oldest message of a sender that is due, and all others to its receiver, for as long as that has existed,
-- within bounds: if it fails again and again, its delay doubles.
-- Locks: the messages, with SKIP LOCKED.
-- Returns: the oldest.
WITH oldest AS (
    SELECT m.*, n.now
    FROM progressor.messages m, (SELECT coalesce(%(now)s, clock_timestamp()) AS now) n
    WHERE (m.slot, m.namespace, m.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
        AND m.deliver_at <= n.now
    ORDER BY m.slot, m.namespace, m.process_id, m.message_id
    LIMIT 1
),
deferred AS (
    UPDATE progressor.messages m
    SET deliver_at = d.deliver_at
    FROM (
        SELECT d.message_id,
            o.now + greatest(%(at_least)s, least(%(at_most)s, o.now - o.created_at)) AS deliver_at
        FROM progressor.messages d
        JOIN oldest o USING (receiver_slot, receiver_namespace, receiver_id)
        WHERE (d.slot, d.namespace, d.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
        FOR UPDATE OF d SKIP LOCKED
    ) d
    WHERE (m.slot, m.namespace, m.process_id, m.message_id)
        = (%(slot)s, %(namespace)s, %(process_id)s, d.message_id)
)
SELECT o.task_id, o.number, o.receiver_namespace, o.receiver_id
FROM oldest o
