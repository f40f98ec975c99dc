-- Deletes a process with all its rows, and the job that it leads; followers that run are left to stop_orphans, and a
-- bulk operation to delete_bulk.
-- p_since: the answers of tasks that have ended since then are kept in replies, since their callers may not have
-- heard of them yet; that of an init with an idempotency key whenever it has ended, so that a repeated request does
-- not start the process again; null: none are kept.
-- Locks: none of its own; the caller has locked the process.
-- Returns: its unfinished tasks as settle_tasks returns the cancelled ones; null if there are none.
CREATE FUNCTION delete_process(
    p_since timestamptz, p_slot smallint, p_namespace text, p_process_id text
)
RETURNS jsonb
AS $$
DECLARE
    v_cancelled jsonb;
    v_changes   status_change[];
BEGIN
    -- A caller whose own replica carries the task is noted nowhere else than in that replica.
    SELECT jsonb_agg(jsonb_build_array(
        t.task_id, t.task_type,
        to_jsonb(array_remove(array_append(t.reply_to, r.replica_id), NULL)), r.replica_id, r.token))
    INTO v_cancelled
    FROM tasks t
    LEFT JOIN running r USING (slot, namespace, process_id, task_id)
    WHERE (t.slot, t.namespace, t.process_id) = (p_slot, p_namespace, p_process_id)
        AND t.status IN ('waiting', 'running', 'blocked');

    INSERT INTO replies (
        slot, namespace, process_id, task_id, task_type, status, response, error_code, error_reason,
        error_message, error_rejected, error_metadata, created_at, idempotency_key, fingerprint
    )
    SELECT t.slot, t.namespace, t.process_id, t.task_id, t.task_type, t.status, t.response, t.error_code, t.error_reason,
        t.error_message, t.error_rejected, t.error_metadata, p_since + interval '1 minute',
        t.idempotency_key, t.fingerprint
    FROM tasks t
    WHERE (t.slot, t.namespace, t.process_id) = (p_slot, p_namespace, p_process_id)
        AND CASE
            WHEN t.finished_at >= p_since
                THEN t.reply_to IS NOT NULL OR t.idempotency_key IS NOT NULL
                    OR t.task_type IN ('init', 'call', 'repair')
            ELSE t.finished_at < p_since AND t.task_type = 'init' AND t.idempotency_key IS NOT NULL
                AND t.status <> 'cancelled'
        END;

    IF EXISTS (
        SELECT
        FROM jobs
        WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id)
    ) THEN
        INSERT INTO orphans (slot, namespace, process_id, init_task_id)
        SELECT p.slot, p.namespace, p.process_id, p.init_task_id
        FROM job_nodes n
        JOIN LATERAL find_process(n.follower_slot, n.follower_namespace, n.follower_id) p
            ON (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
                = (n.slot, n.namespace, n.process_id, n.ordinal)
        WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
            AND n.state = 'running'
        ON CONFLICT (slot, namespace, process_id) DO UPDATE
        SET init_task_id = excluded.init_task_id;
        DELETE FROM job_nodes
        WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
        DELETE FROM jobs
        WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    END IF;
    PERFORM settle_replies(
        coalesce(p_since + interval '1 minute', clock_timestamp()),
        ARRAY[(p_slot, p_namespace, p_process_id)::process_key], NULL, true);
    DELETE FROM running
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM schedule
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM held
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM refused_messages
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM memos
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM tasks
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM events
    WHERE (slot, namespace, process_id) = (p_slot, p_namespace, p_process_id);
    DELETE FROM processes p
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
    RETURNING ARRAY[(p.namespace, p.status, NULL)::status_change] INTO v_changes;
    PERFORM count_changes(v_changes);
    RETURN v_cancelled;
END;
$$;
