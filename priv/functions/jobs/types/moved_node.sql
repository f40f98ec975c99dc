-- A node of a job that has moved from one state to another.
CREATE TYPE moved_node AS (
    slot       smallint,
    namespace  text COLLATE "C",
    process_id text COLLATE "C",
    ordinal    integer,
    was        node_state,
    begun      boolean,
    state      node_state,
    successors integer[]
);
