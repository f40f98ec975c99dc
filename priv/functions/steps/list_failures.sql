-- Pages through the groups of failures of a namespace, or of p_seen, or of all (null): those with most broken processes first, then those
-- seen last. Broken processes are counted up to p_count_max in each group, in the index processes_by_failure.
-- Locks: none.
-- Returns: at most p_limit groups behind the one named by p_before_*. sample_process_id: a broken process of the group,
-- if it has one.
CREATE FUNCTION list_failures(
    p_namespace    text,
    p_seen         text[],
    p_failure_id   text,
    p_broken_only  boolean,
    p_count_max    integer,
    p_before_count bigint,
    p_before_at    timestamptz,
    p_before_id    text,
    p_limit        integer
)
RETURNS TABLE (
    namespace text, failure_id text, reason text, message text, task_type task_type, release text,
    first_seen_at timestamptz, last_seen_at timestamptz, failure_count bigint, broken_count bigint,
    sample_process_id text
)
STABLE
BY INDEX
AS $$
BEGIN
    RETURN QUERY
    SELECT g.namespace, g.failure_id, g.reason, g.message, g.task_type, g.release, g.first_seen_at,
        g.last_seen_at, g.failure_count, b.broken_count,
        coalesce((
            SELECT p.process_id
            FROM processes p
            WHERE p.namespace = g.namespace COLLATE "POSIX" AND p.failure_id COLLATE "POSIX" = g.failure_id
                AND p.detail IS NOT NULL
            ORDER BY p.created_at DESC, p.process_id COLLATE "POSIX" DESC
            LIMIT 1
        ), g.sample_process_id)
    FROM (
        SELECT f.namespace, f.failure_id, min(f.reason) AS reason, min(f.message) AS message,
            min(f.task_type) AS task_type, min(f.release) AS release, min(f.first_seen_at) AS first_seen_at,
            max(f.last_seen_at) AS last_seen_at, sum(f.failure_count)::bigint AS failure_count,
            min(f.sample_process_id) AS sample_process_id
        FROM (
            SELECT f.namespace, f.failure_id, f.reason, f.message, f.task_type, f.release, f.first_seen_at,
                f.last_seen_at, f.failure_count, f.sample_process_id
            FROM failures f
            UNION ALL
            SELECT f.namespace, f.failure_id, f.reason, f.message, f.task_type, f.release, f.seen_at,
                f.seen_at, f.failure_count, f.process_id
            FROM new_failures f
        ) f
        WHERE (p_namespace = '' OR f.namespace = p_namespace)
            AND (p_seen IS NULL OR f.namespace = ANY (p_seen))
            AND (p_failure_id = '' OR f.failure_id = p_failure_id)
        GROUP BY f.namespace, f.failure_id
        OFFSET 0
    ) g
    CROSS JOIN LATERAL (
        SELECT count(*) AS broken_count
        FROM (
            SELECT
            FROM processes p
            WHERE p.namespace = g.namespace COLLATE "POSIX" AND p.failure_id COLLATE "POSIX" = g.failure_id
                AND p.detail IS NOT NULL
            LIMIT p_count_max
        ) p
    ) b
    WHERE (NOT p_broken_only OR b.broken_count > 0)
        AND (p_before_id IS NULL OR (b.broken_count, g.last_seen_at, g.failure_id)
            < (p_before_count, p_before_at, p_before_id))
    ORDER BY b.broken_count DESC, g.last_seen_at DESC, g.failure_id DESC
    LIMIT p_limit;
END;
$$;
