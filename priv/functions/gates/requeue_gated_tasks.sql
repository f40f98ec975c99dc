-- Puts tasks that wait for their constraints back into the queues of their processes, where they are about to be
-- cancelled with the others: all tasks of a process that a step completes, or breaks if p_cancels; otherwise the
-- requests to a process that breaks for which callers wait; the timers that a step sets or unsets.
-- Locks: none of its own; settle_tasks has locked the processes.
CREATE FUNCTION requeue_gated_tasks(
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_token      bigint[],
    p_outcome    text[],
    p_timer      text[],
    p_cancels    boolean[],
    p_timers     json[]
)
RETURNS void
AS $$
BEGIN
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id
    )
    SELECT g.slot, g.namespace, g.process_id, g.task_id, g.task_type,
        CASE WHEN g.task_type IN ('timeout', 'remove') THEN 'blocked' ELSE 'waiting' END::task_status,
        CASE WHEN g.task_type IN ('timeout', 'remove') THEN g.run_at END, g.attempt, g.replica_id
    FROM (
        SELECT r.slot, r.namespace, r.process_id,
            p_outcome[i.item] = 'complete'
                OR (p_outcome[i.item] = 'break' AND p_cancels[i.item] IS NOT NULL) AS is_all,
            p_outcome[i.item] = 'break' AS breaks,
            ARRAY(
                SELECT ''
                WHERE p_timer[i.item] IS NOT NULL
                UNION ALL
                SELECT c ->> 'name'
                FROM json_array_elements(p_timers[i.item]) AS c
            ) AS names
        FROM unnest(p_slot, p_namespace, p_process_id, p_token) WITH ORDINALITY
            AS i (slot, namespace, process_id, token, item)
        JOIN running r USING (slot, namespace, process_id, token)
        CROSS JOIN LATERAL find_process(i.slot, i.namespace, i.process_id) p
        -- What an earlier break has held stays so if the task that runs again fails too.
        WHERE p_outcome[i.item] = 'complete'
            OR (p_outcome[i.item] = 'break' AND p.status <> 'error')
            OR p_timer[i.item] IS NOT NULL
            OR p_timers[i.item] IS NOT NULL
        OFFSET 0
    ) i
    CROSS JOIN LATERAL (
        SELECT g.*
        FROM gated g
        WHERE (i.is_all OR i.breaks)
            AND (g.slot, g.namespace, g.process_id) = (i.slot, i.namespace, i.process_id)
            AND (i.is_all OR (
                g.attempt = 0 AND g.task_type NOT IN ('timeout', 'remove') AND NOT (
                    SELECT t.is_acknowledged
                    FROM tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (g.slot, g.namespace, g.process_id, g.task_id))))
        UNION ALL
        SELECT g.*
        FROM gated g
        WHERE NOT (i.is_all OR i.breaks)
            AND (g.slot, g.namespace, g.process_id) = (i.slot, i.namespace, i.process_id)
            AND g.task_type IN ('timeout', 'remove')
            AND (
                SELECT coalesce(t.timer_name, '')
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (g.slot, g.namespace, g.process_id, g.task_id)
            ) = ANY (i.names)
    ) g
    WHERE g.state <> 'available';
END;
$$;
