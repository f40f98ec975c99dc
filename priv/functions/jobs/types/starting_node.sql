-- A ready node, with what the task of its follower is made of. The key is the leader's.
CREATE TYPE starting_node AS (
    node_row tid, slot smallint, namespace text COLLATE "C", process_id text COLLATE "C",
    ordinal integer, revision bigint, follower_slot smallint, follower_namespace text COLLATE "C",
    follower_id text COLLATE "C", task_id bigint, item integer, token bigint,
    expires_after double precision, options json, args bytea, caller_context json, trace_context json
);
