-- The key of a task, as an item of a list.
CREATE TYPE task_key AS (
    slot smallint, namespace text COLLATE "C", process_id text COLLATE "C", task_id bigint
);
