-- Finds how far back about p_limit processes reach that meet conditions which the index of List decides, in some namespaces
-- or, if they are null, in all: of each it counts a share of p_limit, as large as its share of the processes. Reads no more
-- than the index.
-- Locks: none.
-- Returns: the last place, in the order of List, up to which none of them has more than its share; null: the end.
CREATE FUNCTION find_window(
    p_namespaces text[],
    p_conditions text,
    p_limit      integer,
    OUT at         timestamptz,
    OUT namespace  text,
    OUT process_id text
)
STABLE
SET jit = off
AS $$
BEGIN
    EXECUTE format(
        $query$
        SELECT p.created_at, p.namespace, p.process_id
        FROM (
            SELECT n.name, coalesce(%3$s * c.process_count / nullif(sum(c.process_count) OVER (), 0), %3$s) AS share
            FROM namespaces n
            LEFT JOIN (
                SELECT c.namespace, sum(CASE
                    WHEN c.status_before IS NULL THEN c.process_count
                    WHEN c.status_after IS NULL THEN -c.process_count
                END) AS process_count
                FROM process_counts c
                GROUP BY c.namespace
            ) c ON c.namespace = n.name
            WHERE n.name = ANY (%1$L::text[]) OR %1$L IS NULL
        ) n
        CROSS JOIN LATERAL (
            SELECT p.created_at, p.namespace, p.process_id
            FROM processes p
            WHERE p.namespace = n.name COLLATE "POSIX" AND %2$s
            ORDER BY p.namespace COLLATE "POSIX", p.created_at DESC, p.process_id COLLATE "POSIX" DESC
            OFFSET greatest(n.share::integer, %3$s / 100, 1) - 1
            LIMIT 1
        ) p
        ORDER BY p.created_at DESC, p.namespace DESC, p.process_id DESC
        LIMIT 1
        $query$,
        p_namespaces, p_conditions, p_limit)
    INTO at, namespace, process_id;
END;
$$;
