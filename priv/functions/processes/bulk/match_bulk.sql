-- Adds the next processes that match a bulk operation to its items. Left out are those that did not match when the
-- operation began, and the processes of the operations themselves. A process did match then, whatever clocks say, if its row
-- has not changed since, or the task that broke it has not. A row that has changed did if the process had been created, and
-- neither its status nor the one before, where that decides, is one that does not match. Only for what is left do instants
-- count: changes of status by something else than a step, and operations that an older release has started. A task to be
-- cancelled is older than the operation.
-- An operation that follows takes up what matches later too: once all have been read, the next call begins anew. It leaves
-- out the processes that it has taken up, unless they were skipped and have broken again since: so none is changed twice,
-- even if it breaks again each time.
-- Locks: the operation. p_limit: how many processes it reads, p_examined_max: examines (list_processes). p_followed_max: how many items an operation may have
-- before it stops to follow.
-- Returns: whether all have been read.
CREATE FUNCTION match_bulk(
    p_now timestamptz, p_namespace text, p_operation_id text, p_limit integer, p_examined_max integer,
    p_followed_max integer
)
RETURNS boolean
SET jit = off
AS $$
DECLARE
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_bulk     bulk_operations%ROWTYPE;
    v_began_by bigint;  -- its init task
    v_page     record;  -- how many were added, whether they are all, and the last
    v_is_all   boolean;
BEGIN
    SELECT * INTO v_bulk FROM bulk_operations o WHERE o.operation_id = p_operation_id
    FOR NO KEY UPDATE;
    IF v_bulk.state = 'running' AND v_bulk.follow AND v_bulk.matched_count >= p_followed_max THEN
        UPDATE bulk_operations o
        SET state = 'stopped', stop_reason = format('it has taken up %s processes', o.matched_count),
            ended_at = v_now, updated_at = v_now
        WHERE o.operation_id = p_operation_id;
        RETURN true;
    END IF;
    IF v_bulk.state IS DISTINCT FROM 'matching'
        AND NOT coalesce(v_bulk.state = 'running' AND v_bulk.follow, false)
    THEN
        RETURN true;
    END IF;
    v_began_by := (
        SELECT p.init_task_id FROM find_process(v_bulk.slot, p_namespace, p_operation_id) p);
    WITH page AS MATERIALIZED (
        SELECT p.*
        FROM list_processes(
            v_bulk.filter, v_bulk.after_created_at, v_bulk.after_namespace, v_bulk.after_process_id,
            p_limit, p_examined_max, 'Infinity') p
    ),
    matched AS (
        SELECT p.*, b.token AS broken_token, CASE WHEN v_bulk.kind = 'cancel' THEN
            find_cancellable(p.slot, p.namespace, p.process_id) END AS task_id
        FROM page p
        -- No row: none has broken it, or it runs again.
        LEFT JOIN LATERAL (
            SELECT t.token
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (p.slot, p.namespace, p.process_id, p.corrupted_by) AND t.status = 'error'
            OFFSET 0
        ) b ON true
        WHERE p.namespace <> p_namespace AND p.status IS NOT NULL
            AND CASE
                WHEN v_bulk.follow THEN NOT EXISTS (
                    SELECT
                    FROM bulk_items i
                    WHERE i.operation_id = p_operation_id AND i.init_task_id = p.init_task_id
                        AND i.follow
                        AND (i.result IS DISTINCT FROM 'skipped'
                            OR (i.broken_at = p.broken_at AND coalesce(i.broken_token = b.token, true)))
                )
                ELSE (
                    SELECT CASE
                        WHEN is_in_snapshot(x.xmin, v_bulk.snapshot) THEN true
                        WHEN x.init_task_id > v_began_by THEN false
                        WHEN NOT v_bulk.filter ?| '{failure_id,failure_reason,broken_from,broken_to}'
                            AND (NOT v_bulk.filter ? 'statuses' OR v_bulk.filter -> 'statuses'
                                ?& ARRAY[x.status::text, coalesce(x.previous_status, x.status)::text])
                            THEN true
                        WHEN x.corrupted_by IS NOT NULL AND v_bulk.snapshot IS NOT NULL THEN (
                            SELECT is_in_snapshot(t.xmin, v_bulk.snapshot)
                            FROM tasks t
                            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                                = (x.slot, x.namespace, x.process_id, x.corrupted_by))
                        ELSE greatest(x.status_changed_at, p.broken_at) < v_bulk.created_at
                    END
                    FROM processes x
                    WHERE (x.slot, x.namespace, x.process_id) = (p.slot, p.namespace, p.process_id)
                )
            END
    ),
    added AS (
        INSERT INTO bulk_items (
            operation_id, item, slot, namespace, process_id, init_task_id, broken_by, broken_at,
            broken_token, task_id, follow
        )
        SELECT p_operation_id,
            v_bulk.matched_count + row_number() OVER (
                ORDER BY m.created_at DESC, m.namespace DESC, m.process_id DESC),
            m.slot, m.namespace, m.process_id, m.init_task_id,
            CASE WHEN m.status = 'error' THEN m.corrupted_by END, m.broken_at, m.broken_token,
            m.task_id, v_bulk.follow
        FROM matched m
        WHERE v_bulk.kind <> 'cancel' OR m.task_id < v_began_by OR (v_bulk.follow AND m.task_id IS NOT NULL)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM added) AS added,
        (SELECT count(*) < p_limit AND count(*) = count(p.status) FROM page p) AS is_all,
        p.created_at, p.namespace, p.process_id
    INTO v_page
    FROM page p
    ORDER BY p.created_at, p.namespace COLLATE "C", p.process_id COLLATE "C"
    LIMIT 1;
    v_is_all := coalesce(v_page.is_all, true);
    UPDATE bulk_operations o
    SET matched_count = o.matched_count + coalesce(v_page.added, 0),
        updated_at = CASE WHEN o.state = 'matching' OR v_page.added > 0 THEN v_now ELSE o.updated_at END,
        after_created_at = CASE WHEN NOT v_is_all THEN v_page.created_at END,
        after_namespace = CASE WHEN NOT v_is_all THEN v_page.namespace END,
        after_process_id = CASE WHEN NOT v_is_all THEN v_page.process_id END,
        state = CASE WHEN v_is_all THEN 'running' ELSE o.state END, stop_reason = ''
    WHERE o.operation_id = p_operation_id;
    RETURN v_is_all;
END;
$$;
