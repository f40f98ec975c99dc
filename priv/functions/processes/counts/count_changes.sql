-- Counts changes of status, in the transaction that makes them: inserts a row per namespace and change.
-- Inserted rows are not locked by anybody else, so that no transaction waits for another one here.
-- That a release has this function says that it counts (has_older_replica).
CREATE FUNCTION count_changes(p_changes status_change[])
RETURNS void
AS $$
BEGIN
    INSERT INTO process_counts (namespace, status_before, status_after, process_count)
    SELECT c.namespace, c.status_before, c.status_after, count(*)
    FROM unnest(p_changes) AS c
    GROUP BY c.namespace, c.status_before, c.status_after;
END;
$$;
