-- Deletes the memos of tasks that have ended, except of one that may run again since its process is in error: the task
-- that broke it or, if it was broken from outside, one that was cancelled then.
-- Locks: none of its own; the caller has locked the processes.
CREATE FUNCTION forget_memos(p_key process_key[])
RETURNS void
BY ITEM
AS $$
BEGIN
    DELETE FROM memos m
    USING unnest(p_key) AS k
    WHERE (m.slot, m.namespace, m.process_id) = (k.slot, k.namespace, k.process_id)
        AND NOT EXISTS (
            SELECT
            FROM tasks t
            JOIN processes p USING (slot, namespace, process_id)
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (m.slot, m.namespace, m.process_id, m.task_id)
                AND (t.finished_at IS NULL OR (
                    p.status = 'error' AND t.status <> 'finished' AND t.task_type <> 'repair'
                    AND coalesce(t.task_id = p.corrupted_by, true)))
        );
END;
$$;
