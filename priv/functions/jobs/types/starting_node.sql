-- A ready node, with what the task of its follower is made of. The key is the leader's.
CREATE TYPE starting_node AS (
    node_row tid, slot smallint, namespace text, process_id text, ordinal integer, revision bigint,
    follower_slot smallint, follower_namespace text, follower_id text, task_id bigint, item integer,
    token bigint, expires_after double precision, options json, args bytea, caller_context json,
    trace_context json
);
