-- Notes what has broken processes: one row for each group in the call, inserted, so that no settlement waits for another one
-- that fails alike (add_failures adds them up).
-- Locks: none.
-- Returns: nothing.
CREATE FUNCTION note_failures(
    p_namespace  text[],
    p_process_id text[],
    p_seen_at    timestamptz[],
    p_reason     text[],
    p_failure    json[]
)
RETURNS void
BY KEY
AS $$
BEGIN
    INSERT INTO new_failures (
        namespace, failure_id, reason, message, task_type, release, seen_at, failure_count, process_id)
    SELECT i.namespace, i.failure_id, min(i.reason), min(i.message), min(i.task_type), min(i.release),
        max(i.seen_at), count(*), min(i.process_id)
    FROM (
        SELECT i.namespace, i.process_id, i.seen_at, coalesce(i.reason, '') AS reason,
            coalesce(i.failure ->> 'message', '') AS message, (i.failure ->> 'task_type')::task_type AS task_type,
            coalesce(i.failure ->> 'release', '') AS release,
            make_failure_id(i.namespace, i.reason, i.failure) AS failure_id
        FROM unnest(p_namespace, p_process_id, p_seen_at, p_reason, p_failure)
            AS i (namespace, process_id, seen_at, reason, failure)
    ) i
    GROUP BY i.namespace, i.failure_id;
END;
$$;
