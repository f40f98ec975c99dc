-- A source of waiting tasks, a gate or a new queue, and its best head.
CREATE TYPE promoting AS (
    namespace text,
    gate      text,         -- null: a new queue
    queue     text,         -- of the best head; null: no task to try
    aged_at   timestamptz,  -- of one who has waited for longer than the starvation timeout: from when on
    aged_id   bigint,       -- and who
    priority  smallint,
    task_id   bigint
);
