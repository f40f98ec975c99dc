-- name: hold_round
-- Takes the round of retention for `lease`, or keeps it; another replica takes it once that is over. If a clock was set
-- back, the end of the lease is further away than a lease is long.
-- Locks: the round, SKIP LOCKED: its holder is renewing it.
UPDATE progressor.upkeep_rounds d
SET due_at = n.now + %(lease)s, replica_id = %(replica_id)s,
    begun_at = CASE WHEN d.replica_id = %(replica_id)s THEN d.begun_at ELSE n.now END
FROM (
    SELECT f.kind, n.now
    FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now) n
    JOIN progressor.upkeep_rounds f ON f.kind = 'retention'
    WHERE f.replica_id = %(replica_id)s OR f.due_at NOT BETWEEN n.now AND n.now + %(lease)s
    FOR UPDATE OF f SKIP LOCKED
) n
WHERE d.kind = n.kind

-- name: measure_tasks
-- How many partitions the table of tasks has, at least one, and the pages of the largest. Locks: none.
SELECT greatest(1, count(i.inhrelid))::integer AS partition_count,
    max(pg_relation_size(coalesce(i.inhrelid, c.oid)) / current_setting('block_size')::bigint)::bigint
        AS page_count
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhparent = c.oid
WHERE c.oid = 'progressor.tasks'::regclass

-- name: delete_old_replies
-- Deletes up to `limit` answers, the oldest first. Should the place of one be that of another answer, in another
-- partition, that is as old.
DELETE FROM progressor.replies
WHERE created_at < (SELECT coalesce(%(now)s, clock_timestamp()) - %(age)s)
    AND ctid = ANY (ARRAY(
        SELECT r.ctid
        FROM progressor.replies r
        WHERE r.created_at < (SELECT coalesce(%(now)s, clock_timestamp()) - %(age)s)
        ORDER BY r.created_at
        LIMIT %(limit)s
    ))
