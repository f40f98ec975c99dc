-- Finds a process by its key. PostgreSQL inlines the query; OFFSET 0 keeps it an index look-up per row of the caller,
-- whatever the planner estimates for the size of the table.
-- Returns: a row or none.
CREATE FUNCTION find_process(p_slot smallint, p_namespace text, p_process_id text)
RETURNS TABLE (
    process_row tid, slot smallint, namespace text, process_id text, status process_status,
    detail text, corrupted_by bigint, status_changed_at timestamptz, init_task_id bigint,
    result bytea, is_gated boolean, led_by text, leader_slot smallint, leader_namespace text,
    leader_id text, node integer
)
LANGUAGE sql
STABLE
AS $$
    SELECT p.ctid, p.slot, p.namespace, p.process_id, p.status, p.detail, p.corrupted_by,
        p.status_changed_at, p.init_task_id, p.result, p.is_gated, p.led_by, p.leader_slot,
        p.leader_namespace, p.leader_id, p.node
    FROM processes p
    WHERE (p.slot, p.namespace, p.process_id)
        = (p_slot, p_namespace, p_process_id)
    OFFSET 0
$$;
