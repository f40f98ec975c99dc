-- Finds out whether a process that matches a bulk operation did so when that began, whatever clocks say. It did if its row
-- has not changed since, or the task that broke it has not. A row that has changed did if the process had been created, and
-- neither its status nor the one before, where that decides, is one that does not match. Only for what is left do instants
-- count: changes of status by something else than a step, and operations that an older release has started.
-- Locks: none.
-- Returns: whether it did; null if the process does not exist.
CREATE FUNCTION matched_at_start(
    p_bulk bulk_operations, p_began_by bigint, p_slot smallint, p_namespace text, p_process_id text
)
RETURNS boolean
STABLE
AS $$
DECLARE
    v_statuses process_status[] := CASE WHEN p_bulk.filter ? 'statuses' THEN ARRAY(
        SELECT jsonb_array_elements_text(p_bulk.filter -> 'statuses')::process_status) END;
BEGIN
    RETURN (
        SELECT CASE
            WHEN is_in_snapshot(p.xmin, p_bulk.snapshot) THEN true
            WHEN p.init_task_id > p_began_by THEN false
            WHEN NOT p_bulk.filter ?| '{failure_id,failure_reason,broken_from,broken_to}'
                AND (v_statuses IS NULL
                    OR coalesce(p.previous_status, p.status) = ANY (v_statuses) AND p.status = ANY (v_statuses))
                THEN true
            WHEN p.corrupted_by IS NOT NULL AND p_bulk.snapshot IS NOT NULL THEN (
                SELECT is_in_snapshot(t.xmin, p_bulk.snapshot)
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (p.slot, p.namespace, p.process_id, p.corrupted_by))
            ELSE greatest(p.status_changed_at, CASE WHEN p.status = 'error' THEN p.broken_at END)
                < p_bulk.created_at
        END
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id));
END;
$$;
