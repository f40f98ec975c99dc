-- Schedules, and the record of their firings. A firing is one instant of a schedule: what it starts and
-- its row are one transaction, under the lock of the schedule's row, which comes before all others.

CREATE TYPE progressor.overlap_policy AS ENUM ('skip', 'queue_one', 'allow', 'cancel_previous');

CREATE TYPE progressor.firing_cause AS ENUM ('time', 'trigger', 'backfill');

CREATE TYPE progressor.firing_state AS ENUM (
    'queued', 'running', 'done', 'failed', 'cancelled', 'gone', 'skipped', 'missed', 'refused'
);

CREATE TABLE progressor.schedules (
    slot               smallint NOT NULL,  -- of namespace and schedule_id, as for a process
    namespace          text NOT NULL,
    schedule_id        text NOT NULL,
    -- when: cron and its zone, or an interval and its anchor
    cron               text,
    time_zone          text,
    every              interval,
    anchor             timestamptz,
    jitter             interval NOT NULL,
    start_at           timestamptz,
    end_at             timestamptz,
    overlap_policy     progressor.overlap_policy NOT NULL,
    catch_up_window    interval NOT NULL,
    -- what: a request as admission takes it; of a job its graph is the args
    target             text NOT NULL CHECK (target IN ('start', 'call', 'notify', 'job')),
    target_id          text NOT NULL,      -- of a start or a job a template, of the others a process
    args               bytea NOT NULL,
    caller_context     json,
    metadata           jsonb,
    history_after      bigint,
    history_limit      integer,
    history_backward   boolean,
    constraints        json,
    fingerprint        bytea NOT NULL,
    -- where it is
    paused             boolean NOT NULL,
    note               text NOT NULL,
    revision           bigint NOT NULL DEFAULT 1,
    created_at         timestamptz NOT NULL,
    updated_at         timestamptz NOT NULL,
    next_instant       timestamptz,        -- null: none, or paused
    next_at            timestamptz,        -- the same with jitter
    claimed_until      timestamptz,        -- a replica is at it; only divides the work, decides nothing
    started_count      bigint NOT NULL DEFAULT 0,
    skipped_count      bigint NOT NULL DEFAULT 0,
    missed_count       bigint NOT NULL DEFAULT 0,
    refused_count      bigint NOT NULL DEFAULT 0,
    -- instants whose firings retention has deleted: whether they started anything is not known any more
    forgotten_from     timestamptz,
    forgotten_until    timestamptz,
    PRIMARY KEY (slot, namespace, schedule_id),
    CONSTRAINT schedules_schedule_id_check CHECK (octet_length(schedule_id) BETWEEN 1 AND 128),
    CONSTRAINT cron_or_interval CHECK ((cron IS NULL) = (every IS NOT NULL)),
    CONSTRAINT cron_has_a_zone CHECK ((cron IS NULL) = (time_zone IS NULL)),
    CONSTRAINT interval_has_an_anchor CHECK ((every IS NULL) = (anchor IS NULL)),
    CONSTRAINT next_is_whole CHECK ((next_instant IS NULL) = (next_at IS NULL)),
    CONSTRAINT paused_has_no_next CHECK (NOT paused OR next_at IS NULL),
    CONSTRAINT next_at_not_before_instant CHECK (next_at >= next_instant),
    CONSTRAINT forgotten_is_a_span CHECK (
        (forgotten_from IS NULL) = (forgotten_until IS NULL) AND forgotten_from <= forgotten_until
    )
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX schedules_due ON progressor.schedules (next_at) WHERE (next_at IS NOT NULL);
CREATE INDEX schedules_by_id
    ON progressor.schedules (namespace COLLATE "C", schedule_id COLLATE "C");

CREATE TABLE progressor.firings (
    slot            smallint NOT NULL,  -- of the schedule
    namespace       text NOT NULL,
    schedule_id     text NOT NULL,
    instant         timestamptz NOT NULL,
    cause           progressor.firing_cause NOT NULL,
    state           progressor.firing_state NOT NULL,
    overlap_policy  progressor.overlap_policy NOT NULL,
    due_at          timestamptz NOT NULL,
    fired_at        timestamptz NOT NULL,
    started_at      timestamptz,
    ended_at        timestamptz,        -- when what it started was seen to have ended
    process_slot    smallint,           -- what it started or called, in the same namespace
    process_id      text,
    task_type       progressor.task_type,
    task_id         bigint,
    error_code      integer,
    error_reason    text,
    error_message   text,
    missed_count    bigint,             -- of missed ones: this and the next ones, up to missed_until
    missed_until    timestamptz,
    idempotency_key text,               -- of a trigger
    PRIMARY KEY (slot, namespace, schedule_id, instant),
    CONSTRAINT started_has_a_task CHECK ((started_at IS NULL) = (task_id IS NULL)),
    CONSTRAINT running_has_started CHECK (
        (state IN ('running', 'done', 'failed', 'gone')) <= (task_id IS NOT NULL)
    ),
    CONSTRAINT only_missed_are_counted CHECK (
        (state = 'missed') = (missed_count IS NOT NULL)
        AND (missed_count IS NULL) = (missed_until IS NULL)
    )
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX firings_running
    ON progressor.firings (slot, namespace, schedule_id, instant) WHERE (state = 'running');
CREATE INDEX firings_queued
    ON progressor.firings (slot, namespace, schedule_id, instant) WHERE (state = 'queued');
CREATE UNIQUE INDEX firings_by_key
    ON progressor.firings (slot, namespace, schedule_id, idempotency_key)
    WHERE (idempotency_key IS NOT NULL);
