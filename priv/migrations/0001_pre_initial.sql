-- The first schema: processes and what happens to them. See priv/README.md for each table's duty,
-- and for the order in which rows are locked.
--
-- Every key begins with slot, a small hash of namespace and process_id (domain/process.py): lane of
-- the group commit now, distribution key later. Time is timestamptz: microseconds.

CREATE TYPE progressor.process_status AS ENUM ('init', 'running', 'error', 'finished');
CREATE TYPE progressor.task_type AS ENUM ('init', 'call', 'notify', 'repair', 'timeout', 'remove');
CREATE TYPE progressor.task_status AS ENUM
    ('waiting', 'running', 'blocked', 'finished', 'error', 'cancelled');

-- Ascending: within a process, task ids and lease tokens are drawn under its row lock.
CREATE SEQUENCE progressor.task_ids AS bigint;
CREATE SEQUENCE progressor.lease_tokens AS bigint;
CREATE SEQUENCE progressor.replica_ids AS bigint;

CREATE TABLE progressor.namespaces (
    name        text        NOT NULL PRIMARY KEY CHECK (name ~ '^[a-z0-9._-]{1,64}$'),
    revision    bigint      NOT NULL CHECK (revision >= 1),
    config      jsonb       NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

CREATE TABLE progressor.replicas (
    replica_id   bigint      NOT NULL PRIMARY KEY,
    name         text        NOT NULL,
    version      text        NOT NULL,
    functions    text        NOT NULL,
    started_at   timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    draining     boolean     NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE progressor.processes (
    slot              smallint                  NOT NULL,
    namespace         text                      NOT NULL,
    process_id        text                      NOT NULL CHECK (octet_length(process_id) BETWEEN 1 AND 256),
    status            progressor.process_status NOT NULL,
    previous_status   progressor.process_status,
    detail            text,
    aux_state         bytea                     NOT NULL DEFAULT '',
    metadata          jsonb,
    corrupted_by      bigint,
    created_at        timestamptz               NOT NULL,
    status_changed_at timestamptz               NOT NULL,
    last_event_id     bigint                    NOT NULL DEFAULT 0 CHECK (last_event_id >= 0),
    init_task_id      bigint                    NOT NULL,
    result            bytea,
    PRIMARY KEY (slot, namespace, process_id),
    CONSTRAINT detail_with_error CHECK ((status = 'error') = (detail IS NOT NULL)),
    CONSTRAINT corrupted_only_in_error CHECK (corrupted_by IS NULL OR status = 'error')
) WITH (fillfactor = 85);

-- List: newest first. No column in it changes, so the updates of a step stay HOT.
CREATE INDEX processes_by_creation
    ON progressor.processes (namespace, created_at DESC, process_id DESC);
-- List by status, for the statuses that are rare or looked for.
CREATE INDEX processes_in_error
    ON progressor.processes (namespace, created_at DESC, process_id DESC) WHERE status = 'error';
-- Retention.
CREATE INDEX processes_finished
    ON progressor.processes (namespace, status_changed_at) WHERE status = 'finished';
-- List by metadata; a process without any pays nothing.
CREATE INDEX processes_by_metadata
    ON progressor.processes USING gin (metadata jsonb_path_ops) WHERE metadata IS NOT NULL;

-- The record of all tasks. Whether a waiting timer is blocked, its schedule row says alone: it changes
-- with every call.
CREATE TABLE progressor.tasks (
    slot             smallint               NOT NULL,
    namespace        text                   NOT NULL,
    process_id       text                   NOT NULL,
    task_id          bigint                 NOT NULL,
    task_type        progressor.task_type   NOT NULL,
    status           progressor.task_status NOT NULL,
    attempt_count    integer                NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    created_at       timestamptz            NOT NULL,
    scheduled_at     timestamptz,
    first_started_at timestamptz,
    started_at       timestamptz,
    finished_at      timestamptz,
    -- The token of its latest lease: by it a settlement whose answer was lost is recognised.
    token            bigint,
    first_event_id   bigint,
    event_count      integer                NOT NULL DEFAULT 0,
    step_timeout     interval,
    history_after    bigint,
    history_limit    integer,
    history_backward boolean,
    args             bytea                  NOT NULL DEFAULT '',
    caller_context   json,
    trace_context    json,
    idempotency_key  text,
    fingerprint      bytea,
    -- Replicas where a caller waits for this task while another may carry it.
    reply_to         bigint[],
    response         bytea,
    error_code       integer,
    error_reason     text,
    error_message    text,
    error_rejected   boolean,
    error_metadata   json,
    PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT blocked_only_in_schedule CHECK (status <> 'blocked'),
    CONSTRAINT finished_when_final
        CHECK ((finished_at IS NOT NULL) = (status IN ('finished', 'error', 'cancelled')))
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX tasks_by_idempotency_key
    ON progressor.tasks (slot, namespace, process_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- Tasks that wait. due_at is the instant from which a worker may take it; null: it is behind another
-- task of its process, whose settlement brings it on. Blocked: a timer set aside while calls are
-- served. attempt counts the attempts begun.
CREATE TABLE progressor.schedule (
    slot       smallint               NOT NULL,
    namespace  text                   NOT NULL,
    process_id text                   NOT NULL,
    task_id    bigint                 NOT NULL,
    task_type  progressor.task_type   NOT NULL,
    status     progressor.task_status NOT NULL CHECK (status IN ('waiting', 'blocked')),
    due_at     timestamptz,
    attempt    integer                NOT NULL DEFAULT 0,
    replica_id bigint                 NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT only_timers_are_blocked CHECK (status = 'waiting' OR task_type IN ('timeout', 'remove')),
    CONSTRAINT timers_are_due CHECK (due_at IS NOT NULL OR task_type NOT IN ('timeout', 'remove'))
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX schedule_due
    ON progressor.schedule (namespace, due_at) WHERE status = 'waiting' AND due_at IS NOT NULL;
-- One timer per process, and the way to it past any number of waiting calls.
CREATE UNIQUE INDEX schedule_timer
    ON progressor.schedule (slot, namespace, process_id) WHERE task_type IN ('timeout', 'remove');

-- Leased tasks. The primary key is what makes a process single-threaded. A step that continues with
-- the next task of its process updates the row in place.
CREATE TABLE progressor.running (
    slot           smallint             NOT NULL,
    namespace      text                 NOT NULL,
    process_id     text                 NOT NULL,
    task_id        bigint               NOT NULL,
    task_type      progressor.task_type NOT NULL,
    attempt        integer              NOT NULL,
    token          bigint               NOT NULL,
    -- The token of the settlement that brought this lease, to find it again if its answer was lost.
    previous_token bigint,
    replica_id     bigint               NOT NULL,
    leased_at      timestamptz          NOT NULL,
    -- From then on it is a zombie, even if its replica lives.
    expires_at     timestamptz          NOT NULL,
    PRIMARY KEY (slot, namespace, process_id)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE progressor.events (
    slot           smallint    NOT NULL,
    namespace      text        NOT NULL,
    process_id     text        NOT NULL,
    event_id       bigint      NOT NULL CHECK (event_id >= 1),
    task_id        bigint      NOT NULL,
    occurred_at    timestamptz NOT NULL,
    format_version integer     NOT NULL DEFAULT 0,
    payload        bytea       NOT NULL,
    metadata       json,
    PRIMARY KEY (slot, namespace, process_id, event_id)
);

-- Answers of tasks that are gone with their process, for callers who wait in another replica.
-- Kept for minutes.
CREATE TABLE progressor.replies (
    task_id        bigint                 NOT NULL PRIMARY KEY,
    task_type      progressor.task_type   NOT NULL,
    status         progressor.task_status NOT NULL,
    response       bytea,
    error_code     integer,
    error_reason   text,
    error_message  text,
    error_rejected boolean,
    error_metadata json,
    created_at     timestamptz            NOT NULL
);
