-- Gates: what a task must pass before it may run. A task without constraints has no row in any of these
-- tables, and its process is not gated: it pays for nothing of this.

-- What a task waits for that carries constraints: its instant (the first, or that of its retry), a
-- smaller version of its order, another task of its process, gates, or nothing but a worker.
CREATE TYPE progressor.gated_state AS ENUM ('time', 'order', 'process', 'gates', 'available');

-- Until when a task's gates are held: until it has ended, or waits for a retry; or until its process
-- has ended, or is in error.
CREATE TYPE progressor.gate_hold AS ENUM ('task', 'process');

-- How many may hold each gate, and how many do.
CREATE TABLE progressor.gates (
    namespace  text        NOT NULL,
    gate       text        NOT NULL,
    capacity   integer     NOT NULL CHECK (capacity >= 0),
    held       integer     NOT NULL DEFAULT 0 CHECK (held >= 0),
    revision   bigint      NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, gate),
    CONSTRAINT gates_gate_check CHECK (octet_length(gate) BETWEEN 1 AND 256)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Who holds a gate: a process, since it has one task at a time; by the task that took it. One that is
-- reserved is held for a task that has waited for long and cannot have its other gates yet.
CREATE TABLE progressor.gate_holders (
    slot        smallint             NOT NULL,
    namespace   text                 NOT NULL,
    process_id  text                 NOT NULL,
    gate        text                 NOT NULL,
    task_id     bigint               NOT NULL,
    hold        progressor.gate_hold NOT NULL,
    is_reserved boolean              NOT NULL DEFAULT false,
    held_at     timestamptz          NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, gate)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_index_cleanup = on
);

CREATE INDEX gate_holders_by_gate ON progressor.gate_holders (namespace, gate, held_at);

-- Orders: a row for each key, to be locked by whoever decides about a task of it.
CREATE TABLE progressor.orders (
    namespace text NOT NULL,
    order_key text NOT NULL,
    PRIMARY KEY (namespace, order_key),
    CONSTRAINT orders_order_key_check CHECK (octet_length(order_key) BETWEEN 1 AND 256)
);

-- A line: tasks that want the same gates. As long as one of these is full, all of the line wait for
-- that one; so what a gate that is let go looks at are the lines that wait for it, by their heads, and
-- not the tasks in them.
CREATE TABLE progressor.gate_lines (
    namespace     text        NOT NULL,
    line          text        NOT NULL,  -- the gates as text
    gates         text[]      NOT NULL,  -- in the order in which they are locked and reserved
    waits_on      text,                  -- null: to be looked at, in the transaction that made it so
    head_priority smallint    NOT NULL,  -- of the task that is next but for those that wait for long
    head_task_id  bigint      NOT NULL,
    oldest_at     timestamptz NOT NULL,  -- from when on the one could have run that is oldest, and its id
    oldest_id     bigint      NOT NULL,
    PRIMARY KEY (namespace, line)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_index_cleanup = on
);

CREATE INDEX gate_lines_by_head
    ON progressor.gate_lines (namespace, waits_on, head_priority, head_task_id);
CREATE INDEX gate_lines_by_age ON progressor.gate_lines (namespace, waits_on, oldest_at, oldest_id);

-- A task that carries constraints and has not ended. While it is available, or runs, it is where every
-- other task is: in schedule or in running.
CREATE TABLE progressor.gated (
    slot          smallint               NOT NULL,
    namespace     text                   NOT NULL,
    process_id    text                   NOT NULL,
    task_id       bigint                 NOT NULL,
    task_type     progressor.task_type   NOT NULL,
    state         progressor.gated_state NOT NULL,
    state_since   timestamptz            NOT NULL,
    run_at        timestamptz,           -- of a timer and of a retry: when they are due
    ripe_at       timestamptz            NOT NULL,  -- from when on it could have run without gates
    priority      smallint               NOT NULL CHECK (priority BETWEEN 1 AND 5),
    order_key     text,
    order_version integer[],
    gates         text[]                 NOT NULL,
    hold          progressor.gate_hold   NOT NULL,
    line          text,
    attempt       integer                NOT NULL DEFAULT 0,
    replica_id    bigint                 NOT NULL,
    spent_us      bigint[]               NOT NULL DEFAULT '{0,0,0,0,0,0}',  -- see spent_us, until state_since
    -- What it waits for, as the queues are counted; one that is available may run as well.
    cause         text                   NOT NULL GENERATED ALWAYS AS (
        CASE
            WHEN state = 'order' THEN 'order'
            WHEN state = 'process' THEN 'behind_task'
            WHEN state = 'gates' THEN 'gate'
            WHEN state = 'available' THEN 'available'
            WHEN attempt > 0 THEN 'retry'
            WHEN task_type IN ('timeout', 'remove') THEN 'timer'
            ELSE 'run_at'
        END
    ) STORED,
    PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT order_is_whole CHECK ((order_key IS NULL) = (order_version IS NULL)),
    CONSTRAINT in_line_for_gates CHECK ((line IS NOT NULL) = (state = 'gates'))
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_index_cleanup = on
);

CREATE INDEX gated_by_head ON progressor.gated (namespace, line, priority, task_id)
    WHERE line IS NOT NULL;
CREATE INDEX gated_by_age ON progressor.gated (namespace, line, ripe_at, task_id) WHERE line IS NOT NULL;
CREATE INDEX gated_by_order ON progressor.gated (namespace, order_key, order_version, task_id)
    WHERE order_key IS NOT NULL;
CREATE INDEX gated_by_time ON progressor.gated (namespace, run_at) WHERE state = 'time';
-- Of a process, who waits for it and for which gates: however many there are, few have to be looked at.
CREATE INDEX gated_by_state ON progressor.gated (slot, namespace, process_id, state, gates, task_id);
CREATE INDEX gated_by_instant ON progressor.gated (slot, namespace, process_id, run_at)
    WHERE state = 'time';
CREATE INDEX gated_timers ON progressor.gated (slot, namespace, process_id)
    WHERE task_type IN ('timeout', 'remove');
CREATE INDEX gated_by_cause ON progressor.gated (namespace, cause, state_since);
CREATE INDEX gated_inits ON progressor.gated (namespace, state_since)
    WHERE task_type = 'init' AND state <> 'available';

ALTER TABLE progressor.processes
    -- It has a row in gated, holds a gate, or was broken by a timer that has constraints.
    ADD COLUMN is_gated boolean NOT NULL DEFAULT false;

ALTER TABLE progressor.tasks
    -- Its constraints as they were asked for; and once it has ended, the microseconds of its life: those
    -- in each gated_state, in their order, of which the last, available, ends where it runs; and those.
    ADD COLUMN constraints json,
    ADD COLUMN spent_us bigint[];
