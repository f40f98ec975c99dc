-- Reads how processes have ended.
-- Locks: none.
-- Returns: a row for each process that exists, with the number of its item, from 1, and the columns of find_end.
CREATE FUNCTION read_ends(p_slot smallint[], p_namespace text[], p_process_id text[])
RETURNS TABLE (
    number bigint, verdict text, init_task_id bigint, created_at timestamptz, result bytea,
    detail text, broken_by bigint, error_code integer, error_reason text
)
STABLE
BY INDEX
AS $$
BEGIN
    RETURN QUERY
    SELECT i.number, e.*
    FROM unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
        AS i (slot, namespace, process_id, number)
    CROSS JOIN LATERAL find_end(i.slot, i.namespace, i.process_id) e;
END;
$$;
