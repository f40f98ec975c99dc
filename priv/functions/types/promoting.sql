-- A source of waiting tasks, a gate or a new queue, and its best head.
CREATE TYPE promoting AS (
    namespace text COLLATE "C",
    gate      text COLLATE "C",  -- null: a new queue
    queue     text COLLATE "C",  -- of the best head; null: no task to try
    aged_at   timestamptz,       -- of one who has waited for longer than the starvation timeout: from when on
    aged_id   bigint,            -- and who
    priority  smallint,
    task_id   bigint
);
