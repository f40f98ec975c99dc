-- name: count_processes
-- Sums up the counts of a namespace, or of all in the order of their names; namespaces without processes too. Locks:
-- none. Reads all of process_counts, which has a row per namespace and a few hundred besides.
SELECT n.name AS namespace, coalesce(c.init_count, 0) AS init_count,
    coalesce(c.running_count, 0) AS running_count, coalesce(c.error_count, 0) AS error_count,
    coalesce(c.finished_count, 0) AS finished_count, NOT s.is_exact AS is_estimate
FROM progressor.process_count_state s
CROSS JOIN progressor.namespaces n
LEFT JOIN (
    SELECT c.namespace,
        sum(c.process_count) FILTER (WHERE c.status = 'init')::bigint AS init_count,
        sum(c.process_count) FILTER (WHERE c.status = 'running')::bigint AS running_count,
        sum(c.process_count) FILTER (WHERE c.status = 'error')::bigint AS error_count,
        sum(c.process_count) FILTER (WHERE c.status = 'finished')::bigint AS finished_count
    FROM (
        SELECT c.namespace, c.status_after AS status, c.process_count
        FROM progressor.process_counts c
        UNION ALL
        SELECT c.namespace, c.status_before, -c.process_count
        FROM progressor.process_counts c
    ) c
    GROUP BY c.namespace
) c ON c.namespace = n.name
WHERE n.name = %(namespace)s OR %(namespace)s = ''
ORDER BY n.name
