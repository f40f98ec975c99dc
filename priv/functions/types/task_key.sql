-- The key of a task, as an item of a list.
CREATE TYPE task_key AS (slot smallint, namespace text, process_id text, task_id bigint);
