-- Deletes processes with all their rows, and the jobs that they lead; followers that run are left to stop_orphans, and
-- a bulk operation to delete_bulk.
-- p_since: the answers of tasks that have ended since then are kept in replies, since their callers may not have
-- heard of them yet; that of an init with an idempotency key whenever it has ended, so that a repeated request does
-- not start the process again; null: none are kept.
-- The rows are looked up by key and deleted by ctid, so that no plan, made when a table was small, reads all of it.
-- Locks: none of its own; the caller has locked the processes.
-- Returns: their unfinished tasks as settle_tasks returns the cancelled ones; null if there are none.
CREATE FUNCTION delete_processes(p_since timestamptz, p_key process_key[])
RETURNS jsonb
AS $$
DECLARE
    v_cancelled jsonb;
    v_leader    process_key;
    v_asked     process_key[];
    v_changes   status_change[];
BEGIN
    -- A caller whose own replica carries the task is noted nowhere else than in that replica.
    SELECT jsonb_agg(jsonb_build_array(
        t.task_id, t.task_type,
        to_jsonb(array_remove(array_append(t.reply_to, r.replica_id), NULL)), r.replica_id, r.token))
    INTO v_cancelled
    FROM unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT t.*
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id) = (k.slot, k.namespace, k.process_id)
            AND t.status IN ('waiting', 'running', 'blocked')
        OFFSET 0
    ) t
    LEFT JOIN LATERAL (
        SELECT r.replica_id, r.token
        FROM running r
        WHERE (r.slot, r.namespace, r.process_id) = (t.slot, t.namespace, t.process_id)
            AND r.task_id = t.task_id
        OFFSET 0
    ) r ON true;

    IF p_since IS NOT NULL THEN
        INSERT INTO replies (
            slot, namespace, process_id, task_id, task_type, status, response, error_code,
            error_reason, error_message, error_rejected, error_metadata, created_at,
            idempotency_key, fingerprint
        )
        SELECT t.slot, t.namespace, t.process_id, t.task_id, t.task_type, t.status, t.response,
            t.error_code, t.error_reason, t.error_message, t.error_rejected, t.error_metadata,
            p_since + interval '1 minute', t.idempotency_key, t.fingerprint
        FROM unnest(p_key) AS k
        CROSS JOIN LATERAL (
            SELECT t.*
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id) = (k.slot, k.namespace, k.process_id)
            OFFSET 0
        ) t
        WHERE CASE
            WHEN t.finished_at >= p_since
                THEN t.reply_to IS NOT NULL OR t.idempotency_key IS NOT NULL
                    OR t.task_type IN ('init', 'call', 'repair')
            ELSE t.finished_at < p_since AND t.task_type = 'init' AND t.idempotency_key IS NOT NULL
                AND t.status <> 'cancelled'
        END;
    END IF;

    SELECT array_agg((k.slot, k.namespace, k.process_id)::process_key)
    INTO v_asked
    FROM unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
            AND p.has_reply_requests
        OFFSET 0
    ) p;
    IF v_asked IS NOT NULL THEN
        PERFORM settle_replies(
            coalesce(p_since + interval '1 minute', clock_timestamp()), v_asked, NULL, true);
    END IF;
    FOR v_leader IN
        SELECT j.slot, j.namespace, j.process_id
        FROM unnest(p_key) AS k
        CROSS JOIN LATERAL find_job(k.slot, k.namespace, k.process_id) j
    LOOP
        INSERT INTO orphans (slot, namespace, process_id, init_task_id)
        SELECT p.slot, p.namespace, p.process_id, p.init_task_id
        FROM job_nodes n
        JOIN LATERAL find_process(n.follower_slot, n.follower_namespace, n.follower_id) p
            ON (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
                = (n.slot, n.namespace, n.process_id, n.ordinal)
        WHERE (n.slot, n.namespace, n.process_id)
                = (v_leader.slot, v_leader.namespace, v_leader.process_id)
            AND n.state = 'running'
        ON CONFLICT (slot, namespace, process_id) DO UPDATE
        SET init_task_id = excluded.init_task_id;
        DELETE FROM job_nodes
        WHERE (slot, namespace, process_id)
            = (v_leader.slot, v_leader.namespace, v_leader.process_id);
        DELETE FROM jobs
        WHERE (slot, namespace, process_id)
            = (v_leader.slot, v_leader.namespace, v_leader.process_id);
    END LOOP;

    DELETE FROM running d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM running r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    DELETE FROM schedule d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM schedule r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    DELETE FROM held d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM held r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    DELETE FROM refused_messages d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM refused_messages r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    DELETE FROM memos d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM memos r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    DELETE FROM tasks d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM tasks r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    DELETE FROM events d
    USING unnest(p_key) AS k
    CROSS JOIN LATERAL (
        SELECT r.slot, r.ctid AS row_id
        FROM events r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        OFFSET 0
    ) r
    WHERE d.ctid = r.row_id
        AND d.slot BETWEEN r.slot AND r.slot;
    WITH gone AS (
        DELETE FROM processes d
        USING unnest(p_key) AS k
        CROSS JOIN LATERAL (
            SELECT r.slot, r.ctid AS row_id
            FROM processes r
            WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
            OFFSET 0
        ) r
        WHERE d.ctid = r.row_id
            AND d.slot BETWEEN r.slot AND r.slot
        RETURNING d.namespace, d.status
    )
    SELECT array_agg((g.namespace, g.status, NULL)::status_change)
    INTO v_changes
    FROM gone g;
    PERFORM count_changes(v_changes);
    RETURN v_cancelled;
END;
$$;
