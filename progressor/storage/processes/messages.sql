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
-- Delays the messages of a sender that cannot be delivered now.
-- Locks: the messages, with SKIP LOCKED.
UPDATE progressor.messages m
SET deliver_at = coalesce(%(now)s, clock_timestamp()) + %(delay)s
FROM (
    SELECT d.message_id
    FROM progressor.messages d
    WHERE (d.slot, d.namespace, d.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    FOR UPDATE SKIP LOCKED
) d
WHERE (m.slot, m.namespace, m.process_id, m.message_id)
    = (%(slot)s, %(namespace)s, %(process_id)s, d.message_id)
