-- A change of a timer by a step, as settle_timers collects them, or a timer of put_process.
CREATE TYPE timer_change AS (
    item             integer,
    slot             smallint,
    namespace        text COLLATE "C",
    process_id       text COLLATE "C",
    name             text COLLATE "C",       -- '': the timer without a name
    task_id          bigint,     -- of the new timer; null: the timer is only cancelled
    task_type        task_type,
    due_at           timestamptz,
    args             bytea,
    trace_context    json,
    step_timeout     interval,
    history_after    bigint,
    history_limit    integer,
    history_backward boolean,
    constraints      json
);
