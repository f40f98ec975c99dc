-- Finds the tasks with constraints that a change of their process may affect: those that are available or named,
-- timers, those whose instant has come, of those that wait for the process the oldest of each set of gates, and
-- those queued for gates that the process now holds permanently; all, if the process has just changed its status or
-- has ended. So a crowd that waits for one process costs nothing.
-- Locks: none; the caller has locked the process.
-- Returns: their ids.
CREATE FUNCTION find_affected_tasks(
    p_now        timestamptz,
    p_limit      integer,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_task_id    bigint[]
)
RETURNS bigint[]
STABLE
AS $$
DECLARE
    v_kept text[];
BEGIN
    PERFORM
    FROM processes p
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
        AND p.status IN ('init', 'running')
        AND p.status_changed_at <> p_now;
    IF NOT FOUND THEN
        RETURN ARRAY(
            SELECT g.task_id
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id) = (p_slot, p_namespace, p_process_id)
        );
    END IF;
    v_kept := ARRAY(
        SELECT h.gate
        FROM gate_holders h
        WHERE (h.slot, h.namespace, h.process_id) = (p_slot, p_namespace, p_process_id)
            AND h.hold = 'process'
            AND NOT h.is_reserved
    );
    RETURN ARRAY(
        SELECT g.task_id
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id, g.state)
            = (p_slot, p_namespace, p_process_id, 'available')
        UNION
        SELECT unnest(p_task_id)
        UNION
        SELECT g.task_id
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id) = (p_slot, p_namespace, p_process_id)
            AND g.task_type IN ('timeout', 'remove')
        UNION
        (SELECT g.task_id
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id) = (p_slot, p_namespace, p_process_id)
            AND g.state = 'time'
            AND g.run_at <= p_now
        ORDER BY g.slot, g.namespace, g.process_id, g.run_at
        LIMIT p_limit)
        UNION
        SELECT g.task_id
        FROM gated g
        WHERE v_kept <> '{}'
            AND (g.slot, g.namespace, g.process_id, g.state)
                = (p_slot, p_namespace, p_process_id, 'gates')
            AND g.queue::text[] && v_kept
        UNION
        SELECT f.task_id
        FROM (
            WITH RECURSIVE sets AS (
                (SELECT g.gates, g.task_id
                FROM gated g
                WHERE (g.slot, g.namespace, g.process_id, g.state)
                        = (p_slot, p_namespace, p_process_id, 'process')
                    AND g.task_type NOT IN ('timeout', 'remove')
                ORDER BY g.slot, g.namespace, g.process_id, g.state, g.gates, g.task_id
                LIMIT 1)
                UNION ALL
                SELECT n.gates, n.task_id
                FROM sets s
                CROSS JOIN LATERAL (
                    SELECT g.gates, g.task_id
                    FROM gated g
                    WHERE (g.slot, g.namespace, g.process_id, g.state)
                            = (p_slot, p_namespace, p_process_id, 'process')
                        AND g.gates > s.gates
                        AND g.task_type NOT IN ('timeout', 'remove')
                    ORDER BY g.slot, g.namespace, g.process_id, g.state, g.gates, g.task_id
                    LIMIT 1
                ) n
            )
            SELECT sets.task_id FROM sets
        ) f
    );
END;
$$;
