-- Finds a node by its key. PostgreSQL inlines the query; OFFSET 0 keeps it an index look-up per row of the caller,
-- whatever the planner estimates for the size of the table.
-- Returns: a row or none.
CREATE FUNCTION find_node(p_slot smallint, p_namespace text, p_process_id text, p_ordinal integer)
RETURNS TABLE (
    node_row tid, slot smallint, namespace text, process_id text, ordinal integer,
    state node_state, begun boolean, gated boolean, skipped_because_of integer,
    follower_slot smallint, follower_namespace text, follower_id text, started_at timestamptz,
    ended_at timestamptz, name text, successors integer[], args bytea, options json,
    constraints json
)
LANGUAGE sql
STABLE
AS $$
    SELECT n.ctid, n.slot, n.namespace, n.process_id, n.ordinal, n.state, n.begun, n.gated,
        n.skipped_because_of, n.follower_slot, n.follower_namespace, n.follower_id, n.started_at,
        n.ended_at, n.name, n.successors, n.args, n.options, n.constraints
    FROM job_nodes n
    WHERE (n.slot, n.namespace, n.process_id, n.ordinal)
        = (p_slot, p_namespace, p_process_id, p_ordinal)
    OFFSET 0
$$;
