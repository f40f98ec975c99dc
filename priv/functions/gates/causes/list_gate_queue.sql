-- Lists the first 1,000 tasks queued for a gate in the order in which they pass: those that have waited for longer
-- than p_starvation_timeout, the longest first; then by priority and age. It looks at 1,000 queues and at the 10,000
-- first tasks of these at most.
-- Returns: their ids.
CREATE FUNCTION list_gate_queue(
    p_now timestamptz, p_starvation_timeout double precision, p_namespace text, p_gate text
)
RETURNS bigint[]
STABLE
BY INDEX
SET enable_bitmapscan = off
AS $$
DECLARE
    v_aged_from timestamptz := p_now - make_interval(secs => p_starvation_timeout);
    v_aged      bigint[];
    v_others    bigint[];
BEGIN
    SELECT coalesce(array_agg(f.task_id ORDER BY f.ready_at, f.task_id), '{}')
    INTO v_aged
    FROM (
        SELECT a.ready_at, a.task_id
        FROM (
            SELECT t.ready_at, t.task_id
            FROM (
                SELECT l.queue
                FROM gate_queues l
                WHERE (l.namespace, l.waits_on) = (p_namespace, p_gate)
                    AND l.oldest_at <= v_aged_from
                ORDER BY l.namespace, l.waits_on, l.oldest_at
                LIMIT 1000
            ) l
            CROSS JOIN LATERAL (
                SELECT g.ready_at, g.task_id
                FROM gated g
                WHERE (g.namespace, g.queue) = (p_namespace, l.queue)
                    AND g.ready_at <= v_aged_from
                ORDER BY g.namespace, g.queue, g.ready_at, g.task_id
                LIMIT 1000
            ) t
            LIMIT 10000
        ) a
        ORDER BY a.ready_at, a.task_id
        LIMIT 1000
    ) f;
    -- The others stand among those aged, and are looked for only where these are few.
    IF cardinality(v_aged) = 1000 THEN
        RETURN v_aged;
    END IF;
    SELECT coalesce(array_agg(f.task_id ORDER BY f.priority, f.task_id), '{}')
    INTO v_others
    FROM (
        SELECT a.priority, a.task_id
        FROM (
            SELECT t.priority, t.task_id
            FROM (
                SELECT l.queue
                FROM gate_queues l
                WHERE (l.namespace, l.waits_on) = (p_namespace, p_gate)
                ORDER BY l.namespace, l.waits_on, l.head_priority, l.head_task_id
                LIMIT 1000
            ) l
            CROSS JOIN LATERAL (
                SELECT g.priority, g.task_id
                FROM gated g
                WHERE (g.namespace, g.queue) = (p_namespace, l.queue)
                    AND g.ready_at > v_aged_from
                ORDER BY g.namespace, g.queue, g.priority, g.task_id
                LIMIT 1000
            ) t
            LIMIT 10000
        ) a
        ORDER BY a.priority, a.task_id
        LIMIT 1000 - cardinality(v_aged)
    ) f;
    RETURN v_aged || v_others;
END;
$$;
