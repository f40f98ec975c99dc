-- Queues available tasks for their gates again, all at once: what release_gates, dequeue_task
-- and move_gated do for one. It is for tasks that are all that their processes have: nothing else of them
-- waits, holds a gate or runs, and the tasks lack nothing but gates.
-- Locks: none of its own; the caller has locked the processes and the gates.
-- Returns: the gates given back, each once, and the queues that are to be looked at.
CREATE FUNCTION requeue_evicted_tasks(
    p_now        timestamptz,
    p_namespace  text,
    p_slot       smallint[],
    p_process_id text[],
    p_task_id    bigint[],
    OUT freed  text[],
    OUT queues text[]
)
AS $$
BEGIN
    -- By ctid, which cannot change meanwhile: the processes and gates are locked.
    WITH gone AS (
        DELETE FROM gate_holders h
        USING (
            SELECT f.row_id
            FROM unnest(p_slot, p_process_id) AS i (slot, process_id)
            CROSS JOIN LATERAL (
                SELECT o.ctid AS row_id
                FROM gate_holders o
                WHERE (o.slot, o.namespace, o.process_id) = (i.slot, p_namespace, i.process_id)
                OFFSET 0
            ) f
        ) i
        WHERE h.ctid = i.row_id
        RETURNING h.gate
    ),
    given_back AS (
        UPDATE gates g
        SET held = g.held - i.count
        FROM (
            SELECT f.row_id, c.count
            FROM (SELECT o.gate, count(*) AS count FROM gone o GROUP BY o.gate) c
            CROSS JOIN LATERAL (
                SELECT o.ctid AS row_id
                FROM gates o
                WHERE (o.namespace, o.gate) = (p_namespace, c.gate)
                OFFSET 0
            ) f
        ) i
        WHERE g.ctid = i.row_id
        RETURNING g.gate
    )
    SELECT array_agg(g.gate) INTO freed FROM given_back g;

    DELETE FROM schedule s
    USING (
        SELECT f.row_id
        FROM unnest(p_slot, p_process_id, p_task_id) AS i (slot, process_id, task_id)
        CROSS JOIN LATERAL (
            SELECT o.ctid AS row_id
            FROM schedule o
            WHERE (o.slot, o.namespace, o.process_id, o.task_id)
                = (i.slot, p_namespace, i.process_id, i.task_id)
            OFFSET 0
        ) f
    ) i
    WHERE s.ctid = i.row_id;

    WITH moved AS (
        UPDATE gated g
        SET state = 'gates',
            state_since = greatest(p_now, g.state_since),
            spent_us = spent_us(p_now, g, i.started_at),
            queue = g.gates::text
        FROM (
            SELECT f.row_id, (
                    SELECT t.started_at
                    FROM tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (i.slot, p_namespace, i.process_id, i.task_id)
                ) AS started_at
            FROM unnest(p_slot, p_process_id, p_task_id) AS i (slot, process_id, task_id)
            CROSS JOIN LATERAL (
                SELECT o.ctid AS row_id
                FROM gated o
                WHERE (o.slot, o.namespace, o.process_id, o.task_id)
                    = (i.slot, p_namespace, i.process_id, i.task_id)
                OFFSET 0
            ) f
        ) i
        WHERE g.ctid = i.row_id
        RETURNING g.gates, g.queue, g.priority, g.ready_at, g.task_id
    ),
    entered AS (
        INSERT INTO gate_queues AS l (
            namespace, queue, gates, head_priority, head_task_id, oldest_at, oldest_id
        )
        SELECT DISTINCT ON (m.queue) p_namespace, m.queue, m.gates,
            first_value(m.priority) OVER by_head, first_value(m.task_id) OVER by_head,
            m.ready_at, m.task_id
        FROM moved m
        WINDOW by_head AS (PARTITION BY m.queue ORDER BY m.priority, m.task_id)
        ORDER BY m.queue, m.ready_at, m.task_id
        ON CONFLICT (namespace, queue) DO UPDATE
        SET head_priority = CASE
                WHEN (excluded.head_priority, excluded.head_task_id)
                    < (l.head_priority, l.head_task_id)
                THEN excluded.head_priority ELSE l.head_priority END,
            head_task_id = CASE
                WHEN (excluded.head_priority, excluded.head_task_id)
                    < (l.head_priority, l.head_task_id)
                THEN excluded.head_task_id ELSE l.head_task_id END,
            oldest_at = least(l.oldest_at, excluded.oldest_at),
            oldest_id = CASE
                WHEN (excluded.oldest_at, excluded.oldest_id) < (l.oldest_at, l.oldest_id)
                THEN excluded.oldest_id ELSE l.oldest_id END
        RETURNING l.queue, l.waits_on
    )
    SELECT array_agg(e.queue) INTO queues FROM entered e WHERE e.waits_on IS NULL;
END;
$$;
