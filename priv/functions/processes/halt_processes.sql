-- Ends processes from outside of their steps: their queued and running tasks are cancelled, and they are finished or
-- in error; a running step finds its lease gone. Jobs that they lead, and their nodes, are left to the caller. What
-- is held on a process in error stays so, unless it is finished.
-- p_detail: the error detail of the process, or why it was ended; the tasks that are cancelled have it too.
-- Locks: none of its own, the caller has locked the processes; then, of those that are gated, as settle_gates.
-- Returns: what was cancelled, and the effects.
CREATE FUNCTION halt_processes(
    LIKE own_arguments,
    p_status process_status,
    p_key    process_key[],
    p_detail text[]
)
RETURNS halted
BY ITEM
AS $$
DECLARE
    v_gated   process_key[];
    v_halted  halted;
    v_changes status_change[];
    v_broken  record;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT h.*, CASE WHEN p.status = 'error' THEN p.corrupted_by END AS broken_by,
            p.status = 'error' AND p_status = 'error' AS stays_broken
        FROM unnest(p_key, p_detail) AS h (slot, namespace, process_id, detail)
        CROSS JOIN LATERAL find_process(h.slot, h.namespace, h.process_id) p
    ),
    unfinished AS MATERIALIZED (
        SELECT h.slot, h.detail, t.task_row, w.replica_id, w.token,
            w.task_id IS NOT DISTINCT FROM h.broken_by AS retries
        FROM wanted h
        CROSS JOIN LATERAL (
            SELECT s.task_id, NULL::bigint AS replica_id, NULL::bigint AS token
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (h.slot, h.namespace, h.process_id)
            UNION ALL
            SELECT r.task_id, r.replica_id, r.token
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id) = (h.slot, h.namespace, h.process_id)
            UNION ALL
            SELECT d.task_id, NULL, NULL
            FROM held d
            WHERE (d.slot, d.namespace, d.process_id) = (h.slot, h.namespace, h.process_id)
                AND p_status = 'finished'
            UNION ALL
            SELECT g.task_id, NULL, NULL
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id) = (h.slot, h.namespace, h.process_id)
                AND g.state <> 'available'
                AND (NOT h.stays_broken OR g.task_id IS NOT DISTINCT FROM h.broken_by)
            OFFSET 0
        ) w
        CROSS JOIN LATERAL (
            SELECT t.ctid AS task_row
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (h.slot, h.namespace, h.process_id, w.task_id)
            OFFSET 0
        ) t
        OFFSET 0
    ),
    ended AS (
        UPDATE tasks t
        SET status = 'cancelled', finished_at = p_now, error_code = 9,
            error_reason = CASE p_status
                WHEN 'finished' THEN 'PROCESS_FINISHED' ELSE 'PROCESS_FAILED' END,
            error_message = coalesce(u.detail, '')
                || CASE WHEN u.token IS NULL THEN '' ELSE ' (it ran: its processor may have acted)' END,
            error_rejected = false,
            idempotency_key = CASE WHEN t.attempt_count > 0 OR u.retries THEN t.idempotency_key END
        FROM unfinished u
        WHERE t.ctid = u.task_row AND t.slot BETWEEN u.slot AND u.slot
        -- A caller whose own replica carries the task is noted nowhere else than in that replica.
        RETURNING t.slot, t.namespace, t.process_id, t.task_id, t.task_type,
            array_remove(array_append(t.reply_to, u.replica_id), NULL) AS reply_to, u.replica_id,
            u.token
    )
    SELECT jsonb_agg(jsonb_build_array(c.slot, c.namespace, c.process_id, c.tasks))
    INTO v_halted.cancelled
    FROM (
        SELECT e.slot, e.namespace, e.process_id,
            jsonb_agg(jsonb_build_array(
                e.task_id, e.task_type, coalesce(to_jsonb(e.reply_to), '[]'), e.replica_id,
                e.token)) AS tasks
        FROM ended e
        GROUP BY e.slot, e.namespace, e.process_id
    ) c;

    DELETE FROM schedule s
    USING unnest(p_key) AS h
    WHERE (s.slot, s.namespace, s.process_id) = (h.slot, h.namespace, h.process_id);
    DELETE FROM held d
    USING unnest(p_key) AS h
    WHERE (d.slot, d.namespace, d.process_id) = (h.slot, h.namespace, h.process_id)
        AND p_status = 'finished';
    DELETE FROM running r
    USING unnest(p_key) AS h
    WHERE (r.slot, r.namespace, r.process_id) = (h.slot, h.namespace, h.process_id);
    -- One that is in error already tells why it was.
    WITH moved AS (
        UPDATE processes p
        SET status = p_status,
            previous_status = p.status,
            status_changed_at = p_now,
            detail = CASE WHEN p_status = 'error' THEN coalesce(h.detail, '') END,
            corrupted_by = NULL,
            broken_at = CASE WHEN p_status = 'error' THEN p_now END,
            failure_id = CASE WHEN p_status = 'error' THEN make_failure_id(h.namespace, h.reason, NULL) END,
            failure_reason = CASE WHEN p_status = 'error' THEN h.reason END,
            end_reason = CASE WHEN p_status = 'finished' THEN h.detail END,
            finished_at = CASE WHEN p_status = 'finished' THEN p_now END
        FROM (
            SELECT h.*, coalesce(substring(h.detail FROM '^([A-Z_]{1,64}): '), 'STOPPED') AS reason
            FROM unnest(p_key, p_detail) AS h (slot, namespace, process_id, detail)
        ) h
        WHERE (p.slot, p.namespace, p.process_id) = (h.slot, h.namespace, h.process_id)
            AND p.status <> p_status
        RETURNING p.namespace, p.process_id, p.previous_status, p.status, p.failure_reason
    )
    SELECT array_agg((m.namespace, m.previous_status, m.status)::status_change) AS changes,
        array_agg(m.namespace) FILTER (WHERE m.failure_reason IS NOT NULL) AS namespaces,
        array_agg(m.process_id) FILTER (WHERE m.failure_reason IS NOT NULL) AS ids,
        array_agg(m.failure_reason) FILTER (WHERE m.failure_reason IS NOT NULL) AS reasons
    INTO v_broken
    FROM moved m;
    v_changes := v_broken.changes;
    IF v_changes IS NOT NULL THEN
        PERFORM count_changes(v_changes);
    END IF;
    IF v_broken.ids IS NOT NULL THEN
        PERFORM note_failures(
            v_broken.namespaces, v_broken.ids, array_fill(p_now, ARRAY[cardinality(v_broken.ids)]),
            v_broken.reasons, NULL);
    END IF;
    PERFORM forget_memos(p_key);

    SELECT array_agg(h)
    INTO v_gated
    FROM unnest(p_key) AS h
    CROSS JOIN LATERAL find_process(h.slot, h.namespace, h.process_id) p
    WHERE p.is_gated;
    IF v_gated IS NOT NULL THEN
        v_halted.effects := settle_gates(
            p_now, p_replica_id, p_starvation_timeout, 100, v_gated);
    END IF;
    v_halted.effects := merge_json(v_halted.effects, describe_ends(p_key));
    v_halted.effects := merge_json(v_halted.effects, settle_replies(p_now, p_key, NULL, false));
    RETURN v_halted;
END;
$$;
