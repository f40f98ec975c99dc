-- Finds a job by its key. PostgreSQL inlines the query; OFFSET 0 keeps it an index look-up per row of the caller,
-- whatever the planner estimates for the size of the table.
-- Returns: a row or none.
CREATE FUNCTION find_job(p_slot smallint, p_namespace text, p_process_id text)
RETURNS TABLE (
    job_row tid, slot smallint, namespace text, process_id text, state job_state,
    node_count integer, waiting integer, ready integer, running integer, beginning integer,
    join_task_id bigint, detail text, caller_context json, trace_context json, revision bigint,
    updated_at timestamptz, upkeep_due_at timestamptz, fails_nodes boolean
)
LANGUAGE sql
STABLE
AS $$
    SELECT j.ctid, j.slot, j.namespace, j.process_id, j.state, j.node_count, j.waiting, j.ready,
        j.running, j.beginning, j.join_task_id, j.detail, j.caller_context, j.trace_context,
        j.revision, j.updated_at, j.upkeep_due_at, j.fails_nodes
    FROM jobs j
    WHERE (j.slot, j.namespace, j.process_id)
        = (p_slot, p_namespace, p_process_id)
    OFFSET 0
$$;
