-- Changes the timers of a batch's processes that have named ones, or get them, or are in error, before settle_tasks
-- looks at the queues: those that a step sets or unsets are cancelled, new ones inserted (insert_timers). A step says by p_timer
-- and its columns what becomes of the timer without a name, and by p_timers of those with one (read_timer_changes).
-- A repair that succeeds and says nothing about the timer that broke the process sets that timer again, due now.
-- Locks: none of its own; settle_tasks has locked the processes. With constraints, as constrain_tasks.
-- Returns: the cancelled timers, as settle_waits does.
CREATE FUNCTION settle_timers(
    p_now               timestamptz,
    p_replica_id        bigint,
    p_item              integer[],
    p_slot              smallint[],
    p_namespace         text[],
    p_process_id        text[],
    p_token             bigint[],
    p_outcome           text[],
    p_timer             text[],
    p_timer_at          timestamptz[],
    p_timer_after       double precision[],
    p_timer_args        bytea[],
    p_timer_trace       json[],
    p_timer_timeout     double precision[],
    p_history_after     bigint[],
    p_history_limit     integer[],
    p_history_backward  boolean[],
    p_timer_constraints json[],
    p_timers            json[]
)
RETURNS jsonb
AS $$
DECLARE
    v_changes   timer_change[];
    v_new       timer_change[];
    v_cancelled jsonb;
BEGIN
    WITH finished AS MATERIALIZED (
        SELECT i.item, r.slot, r.namespace, r.process_id,
            CASE WHEN r.task_type = 'repair' THEN p.corrupted_by END AS broken_by
        FROM unnest(p_item) AS i (item)
        CROSS JOIN LATERAL (
            SELECT r.slot, r.namespace, r.process_id, r.task_type
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                    = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
                AND r.token = p_token[i.item]
            OFFSET 0
        ) r
        CROSS JOIN LATERAL find_process(r.slot, r.namespace, r.process_id) p
        WHERE p_outcome[i.item] = 'finish'
    ),
    changed AS MATERIALIZED (
        SELECT f.item, f.slot, f.namespace, f.process_id, '' AS name,
            CASE WHEN p_timer[f.item] <> 'unset' THEN nextval('task_ids') END AS task_id,
            nullif(p_timer[f.item], 'unset')::task_type AS task_type,
            coalesce(
                p_timer_at[f.item], p_now + make_interval(secs => p_timer_after[f.item])) AS due_at,
            coalesce(p_timer_args[f.item], '') AS args, p_timer_trace[f.item] AS trace_context,
            make_interval(secs => p_timer_timeout[f.item]) AS step_timeout,
            p_history_after[f.item] AS history_after, p_history_limit[f.item] AS history_limit,
            p_history_backward[f.item] AS history_backward,
            p_timer_constraints[f.item] AS constraints
        FROM finished f
        WHERE p_timer[f.item] IS NOT NULL
        UNION ALL
        SELECT c.*
        FROM finished f
        CROSS JOIN LATERAL read_timer_changes(
            p_now, f.item, f.slot, f.namespace, f.process_id, p_timers[f.item]) c
    )
    SELECT array_agg(c::timer_change)
    INTO v_changes
    FROM (
        SELECT * FROM changed
        UNION ALL
        SELECT f.item, f.slot, f.namespace, f.process_id, b.name, nextval('task_ids'), b.task_type, p_now,
            b.args, b.trace_context, b.step_timeout, b.history_after, b.history_limit,
            b.history_backward, b.constraints
        FROM finished f
        CROSS JOIN LATERAL (
            SELECT b.*, coalesce(b.timer_name, '') AS name
            FROM tasks b
            WHERE (b.slot, b.namespace, b.process_id, b.task_id)
                    = (f.slot, f.namespace, f.process_id, f.broken_by)
                AND b.task_type IN ('timeout', 'remove')
                AND b.status IN ('error', 'cancelled')
            OFFSET 0
        ) b
        WHERE NOT EXISTS (SELECT FROM changed c WHERE (c.item, c.name) = (f.item, b.name))
    ) c;

    WITH vain AS MATERIALIZED (
        SELECT c.item, c.slot, w.waiting_row, t.task_row
        FROM unnest(v_changes) AS c
        CROSS JOIN LATERAL (
            SELECT w.ctid AS waiting_row, w.task_id
            FROM schedule w
            WHERE (w.slot, w.namespace, w.process_id) = (c.slot, c.namespace, c.process_id)
                AND w.task_type IN ('timeout', 'remove')
            OFFSET 0
        ) w
        CROSS JOIN LATERAL (
            SELECT t.ctid AS task_row
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (c.slot, c.namespace, c.process_id, w.task_id)
                AND coalesce(t.timer_name, '') = c.name
            OFFSET 0
        ) t
    ),
    dropped AS (
        DELETE FROM schedule s
        USING vain v
        WHERE s.ctid = v.waiting_row AND s.slot BETWEEN v.slot AND v.slot
    ),
    cancelled AS (
        UPDATE tasks t
        SET status = 'cancelled', finished_at = p_now, error_code = NULL, error_reason = NULL,
            error_message = NULL, error_rejected = NULL, error_metadata = NULL
        FROM vain v
        WHERE t.ctid = v.task_row AND t.slot BETWEEN v.slot AND v.slot
        RETURNING v.item, t.slot, t.namespace, t.process_id, t.task_id, t.task_type, t.has_memos
    ),
    forgotten AS (
        DELETE FROM memos m
        USING cancelled c
        WHERE c.has_memos
            AND (m.slot, m.namespace, m.process_id, m.task_id)
                = (c.slot, c.namespace, c.process_id, c.task_id)
    )
    SELECT jsonb_object_agg(o.item, o.tasks)
    INTO v_cancelled
    FROM (
        SELECT c.item, jsonb_agg(jsonb_build_array(c.task_id, c.task_type, '[]'::jsonb)) AS tasks
        FROM cancelled c
        GROUP BY c.item
    ) o;

    SELECT array_agg(c) INTO v_new FROM unnest(v_changes) AS c WHERE c.task_id IS NOT NULL;
    IF v_new IS NOT NULL THEN
        PERFORM insert_timers(p_now, p_replica_id, v_new);
    END IF;
    RETURN v_cancelled;
END;
$$;
