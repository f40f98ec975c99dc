-- Retention: deletes up to p_limit tasks in a range of pages, of the namespaces named, that ended longer ago than
-- p_age seconds; except the init task of each process, by which it is known, and the task that broke it, which
-- SimpleRepair may run again. If tasks is partitioned, the range is one of each partition, and the slot says which.
-- Locks: the tasks, SKIP LOCKED; nothing else changes ended tasks.
-- Returns: how many are gone, and in how many seconds the next of those that have ended is due; null: none is. It is
-- negative if some are overdue, beyond the limit or locked.
CREATE FUNCTION delete_old_tasks(
    p_now       timestamptz,
    p_first     bigint,  -- page
    p_end       bigint,  -- the page behind the last one
    p_namespace text[],
    p_age       double precision[],
    p_limit     integer
)
RETURNS TABLE (deleted_count bigint, due_in double precision)
BY KEY
AS $$
DECLARE
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_first tid := format('(%s,0)', p_first);
    v_end   tid := format('(%s,0)', p_end);
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT t.*, t.finished_at + make_interval(secs => a.age) AS due_at
        FROM (
            -- Nothing by which an index applies.
            SELECT t.ctid AS row_id, t.slot, t.namespace, t.process_id, t.task_id, t.finished_at
            FROM tasks t
            WHERE t.ctid >= v_first
                AND t.ctid < v_end
                AND t.finished_at IS NOT NULL
                AND t.task_type <> 'init'
            OFFSET 0
        ) t
        JOIN unnest(p_namespace, p_age) AS a (namespace, age) USING (namespace)
    ),
    old AS MATERIALIZED (
        SELECT e.*
        FROM ended e
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (e.slot, e.namespace, e.process_id)
                AND e.task_id <> p.init_task_id
                AND e.task_id IS DISTINCT FROM p.corrupted_by
            OFFSET 0
        ) p
        WHERE e.due_at < v_now
    ),
    locked AS MATERIALIZED (
        SELECT o.*
        FROM (SELECT o.* FROM old o LIMIT p_limit) o
        CROSS JOIN LATERAL (
            SELECT
            FROM tasks t
            WHERE t.ctid = o.row_id
                AND t.slot BETWEEN o.slot AND o.slot
            FOR UPDATE SKIP LOCKED
        ) t
    ),
    refused AS (
        DELETE FROM refused_messages r
        USING locked l
        WHERE (r.slot, r.namespace, r.process_id, r.task_id)
            = (l.slot, l.namespace, l.process_id, l.task_id)
    ),
    forgotten AS (
        DELETE FROM memos m
        USING locked l
        WHERE (m.slot, m.namespace, m.process_id, m.task_id)
            = (l.slot, l.namespace, l.process_id, l.task_id)
    ),
    gone AS (
        DELETE FROM tasks t
        USING locked l
        WHERE t.ctid = l.row_id
            AND t.slot BETWEEN l.slot AND l.slot
        RETURNING t.task_id
    )
    SELECT (SELECT count(*) FROM gone), extract(epoch FROM min(r.due_at) - v_now)
    INTO deleted_count, due_in
    FROM (
        SELECT e.due_at FROM ended e WHERE e.due_at >= v_now
        UNION ALL
        SELECT o.due_at FROM old o WHERE o.task_id NOT IN (SELECT g.task_id FROM gone g)
    ) r;
    RETURN NEXT;
END;
$$;
