-- name: read_time_left
-- Reads the seconds from now to the deadline of a step, whose lease expires `grace` later. Locks: none.
SELECT extract(epoch FROM expires_at - coalesce(%(now)s, clock_timestamp()))::double precision - %(grace)s
FROM progressor.running
WHERE (slot, namespace, process_id) = (%(slot)s, %(namespace)s, %(process_id)s) AND token = %(token)s
