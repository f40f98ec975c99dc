-- What settle_job_tasks passes on to add_nodes. l_*: a place per leader; g_*: a place per new node; a_*: a place
-- per existing node that gets more successors. g_leader and a_leader are places in l_*.
CREATE TYPE added_nodes AS (
    l_deadline_at timestamptz[], l_timeout double precision[], l_schedule_id text[],
    l_caller_context json[], l_trace_context json[], g_leader integer[], g_ordinal integer[],
    g_name text[], g_slot smallint[], g_namespace text[], g_process_id text[], g_args bytea[],
    g_options json[], g_constraints json[], g_predecessors text[], g_successors text[],
    a_leader integer[], a_ordinal integer[], a_successors text[]
);
