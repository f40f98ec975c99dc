-- Adds what has broken processes since to the groups of failures, and keeps the groups within p_groups_max: those without
-- a broken process go first, then those of the namespaces with most groups, and of these the ones not seen for longest.
-- Safe to run anywhere at once. What is of a deleted namespace is dropped.
-- Locks: new_failures with SKIP LOCKED; namespaces, against deletion, in the order of their names; failures in key order,
-- where only this function waits for itself, and those that go with SKIP LOCKED.
-- Returns: how many rows of new_failures were added; p_limit of them: there may be more.
CREATE FUNCTION add_failures(p_limit integer, p_groups_max integer)
RETURNS bigint
BY KEY
SET lock_timeout = '2s'
AS $$
DECLARE
    v_count bigint;
BEGIN
    WITH taken AS (
        DELETE FROM new_failures f
        WHERE f.failure_number = ANY (ARRAY(
            SELECT t.failure_number
            FROM new_failures t
            ORDER BY t.failure_number
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED))
        RETURNING f.*
    ),
    known AS (
        SELECT n.name
        FROM namespaces n
        WHERE n.name IN (SELECT t.namespace FROM taken t)
        ORDER BY n.name
        FOR KEY SHARE
    ),
    added AS (
        INSERT INTO failures AS g (
            namespace, failure_id, reason, message, task_type, release, first_seen_at, last_seen_at,
            failure_count, sample_process_id)
        SELECT t.namespace, t.failure_id, min(t.reason), min(t.message), min(t.task_type), min(t.release),
            min(t.seen_at), max(t.seen_at), sum(t.failure_count),
            (array_agg(t.process_id ORDER BY t.seen_at DESC))[1]
        FROM taken t
        JOIN known n ON n.name = t.namespace
        GROUP BY t.namespace, t.failure_id
        ORDER BY t.namespace, t.failure_id
        ON CONFLICT (namespace, failure_id) DO UPDATE
        SET first_seen_at = least(g.first_seen_at, excluded.first_seen_at),
            last_seen_at = greatest(g.last_seen_at, excluded.last_seen_at),
            failure_count = g.failure_count + excluded.failure_count,
            sample_process_id = excluded.sample_process_id
    )
    SELECT count(*) INTO v_count FROM taken;

    IF v_count > 0 AND (SELECT count(*) FROM failures) > p_groups_max THEN
        -- A tenth more than need be, so that this is not done with each new group.
        WITH surplus AS (
            SELECT g.namespace, g.failure_id
            FROM (
                SELECT g.*, row_number() OVER (PARTITION BY g.namespace ORDER BY g.last_seen_at DESC) AS place,
                    (
                        SELECT 1
                        FROM processes p
                        WHERE p.namespace = g.namespace COLLATE "POSIX" AND p.failure_id COLLATE "POSIX" = g.failure_id
                            AND p.detail IS NOT NULL
                        LIMIT 1
                    ) AS is_broken
                FROM failures g
            ) g
            ORDER BY g.is_broken NULLS LAST, g.place, g.last_seen_at DESC
            OFFSET p_groups_max - p_groups_max / 10
        ),
        locked AS (
            SELECT g.namespace, g.failure_id
            FROM surplus s
            JOIN failures g USING (namespace, failure_id)
            FOR UPDATE OF g SKIP LOCKED
        )
        DELETE FROM failures g
        USING locked o
        WHERE (g.namespace, g.failure_id) = (o.namespace, o.failure_id);
    END IF;
    RETURN v_count;
END;
$$;
