-- Finds a task with constraints by its key. PostgreSQL inlines the query. By ORDER BY and LIMIT it is a look-up by the
-- primary key per row of the caller: on a table that seems to be empty, another index would look as good.
-- Returns: a row or none.
CREATE FUNCTION find_gated(
    p_slot smallint, p_namespace text, p_process_id text, p_task_id bigint
)
RETURNS SETOF gated
LANGUAGE sql
STABLE
AS $$
    SELECT f.*
    FROM (
        SELECT g.*
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id) = (p_slot, p_namespace, p_process_id)
            AND g.task_id >= p_task_id
        ORDER BY g.slot, g.namespace, g.process_id, g.task_id
        LIMIT 1
    ) f
    WHERE f.task_id = p_task_id
$$;
