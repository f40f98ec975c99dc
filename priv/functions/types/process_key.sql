-- The key of a process, as an item of a list.
CREATE TYPE process_key AS (slot smallint, namespace text COLLATE "C", process_id text COLLATE "C");
