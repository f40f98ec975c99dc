-- Adds the next processes that match a bulk operation to its snapshot. Left out are processes that were created,
-- changed their status or broke since the operation began, since they may not have matched then; for a cancellation,
-- those without a task; and the processes of the operations themselves.
-- Locks: the operation. p_limit: how many processes it reads.
-- Returns: the state of the operation: running once all have been read.
CREATE FUNCTION match_bulk(p_now timestamptz, p_namespace text, p_operation_id text, p_limit integer)
RETURNS text
SET jit = off
AS $$
DECLARE
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_bulk bulk_operations%ROWTYPE;
    v_page record;  -- how many were added and read, and the last
BEGIN
    SELECT * INTO v_bulk FROM bulk_operations o WHERE o.operation_id = p_operation_id
    FOR NO KEY UPDATE;
    IF v_bulk.state IS DISTINCT FROM 'matching' THEN
        RETURN v_bulk.state;
    END IF;
    WITH page AS MATERIALIZED (
        SELECT p.*
        FROM list_processes(
            v_bulk.filter || jsonb_build_object('created_to', least(
                (v_bulk.filter ->> 'created_to')::timestamptz, v_bulk.created_at)),
            v_bulk.after_created_at, v_bulk.after_namespace, v_bulk.after_process_id, p_limit) p
    ),
    matched AS (
        SELECT p.*, CASE WHEN v_bulk.kind = 'cancel' THEN coalesce(
            (SELECT r.task_id FROM running r
                WHERE (r.slot, r.namespace, r.process_id) = (p.slot, p.namespace, p.process_id)),
            (find_first_task(p.slot, p.namespace, p.process_id)).task_id) END AS task_id
        FROM page p
        WHERE p.namespace <> p_namespace
            AND p.status_changed_at < v_bulk.created_at
            AND (p.broken_at IS NULL OR p.broken_at < v_bulk.created_at)
    ),
    added AS (
        INSERT INTO bulk_items (
            operation_id, item, slot, namespace, process_id, init_task_id, broken_by, broken_at, task_id
        )
        SELECT p_operation_id,
            v_bulk.matched_count + row_number() OVER (
                ORDER BY m.created_at DESC, m.namespace COLLATE "C" DESC, m.process_id COLLATE "C" DESC),
            m.slot, m.namespace, m.process_id, m.init_task_id,
            CASE WHEN m.status = 'error' THEN m.corrupted_by END, m.broken_at, m.task_id
        FROM matched m
        WHERE v_bulk.kind <> 'cancel' OR m.task_id IS NOT NULL
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM added) AS added, (SELECT count(*) FROM page) AS read, p.created_at,
        p.namespace, p.process_id
    INTO v_page
    FROM page p
    ORDER BY p.created_at, p.namespace COLLATE "C", p.process_id COLLATE "C"
    LIMIT 1;
    UPDATE bulk_operations o
    SET matched_count = o.matched_count + coalesce(v_page.added, 0), updated_at = v_now,
        after_created_at = coalesce(v_page.created_at, o.after_created_at),
        after_namespace = coalesce(v_page.namespace, o.after_namespace),
        after_process_id = coalesce(v_page.process_id, o.after_process_id),
        state = CASE WHEN coalesce(v_page.read, 0) < p_limit THEN 'running' ELSE o.state END
    WHERE o.operation_id = p_operation_id
    RETURNING o.state INTO v_bulk.state;
    RETURN v_bulk.state;
END;
$$;
