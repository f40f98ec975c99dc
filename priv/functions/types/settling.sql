-- A task of a batch while settle_tasks decides what becomes of it and its process.
CREATE TYPE settling AS (
    item              integer,
    outcome           text,
    slot              smallint,
    namespace         text COLLATE "C",
    process_id        text COLLATE "C",
    task_id           bigint,
    task_type         task_type,
    process_row       tid,
    running_row       tid,
    task_row          tid,
    waiting_row       tid,         -- of the call, or else of the earliest timer
    new_status        process_status,
    status_changed_at timestamptz, -- as it is then
    last_event_id     bigint,      -- as it was
    event_count       integer,
    cancels           text,        -- why tasks leave the queue: all, or repairs if PROCESS_IS_RUNNING
    call_id           bigint,      -- the first in the queue, if the queue moves
    timer_origin      text,        -- 'set', 'kept', or 'retried': the task itself
    timer_id          bigint,
    timer_due_at      timestamptz,
    next_id           bigint,      -- of the call or the timer, if the worker goes on with it
    next_token        bigint
);
