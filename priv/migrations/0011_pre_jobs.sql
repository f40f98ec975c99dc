-- Jobs: graphs of processes. All that is decided about a job is decided under the lock of its leader's
-- row in processes; so these tables have no locks of their own.

CREATE TYPE progressor.job_state AS ENUM ('running', 'done', 'failed', 'cancelled');

CREATE TYPE progressor.node_state AS ENUM (
    'waiting', 'ready', 'running', 'done', 'failed', 'skipped', 'cancelled'
);

-- A process's part in jobs. Of a leader: who leads, 'engine' or 'processor'. Of a follower: its leader
-- and its ordinal there, which never change, and what its node says of its steps.
ALTER TABLE progressor.processes
    ADD COLUMN led_by text CHECK (led_by IN ('engine', 'processor')),
    ADD COLUMN leader_slot smallint,
    ADD COLUMN leader_namespace text,
    ADD COLUMN leader_id text,
    ADD COLUMN node integer,
    ADD COLUMN job_options json,
    ADD CONSTRAINT follower_is_whole CHECK (
        (leader_id IS NULL) = (leader_slot IS NULL)
        AND (leader_id IS NULL) = (leader_namespace IS NULL)
        AND (leader_id IS NULL) = (node IS NULL)

    );

CREATE TABLE progressor.jobs (
    slot          smallint NOT NULL,  -- of the leader
    namespace     text NOT NULL,
    process_id    text NOT NULL,
    state         progressor.job_state NOT NULL,
    -- counts of nodes by state; those that are missing are done
    node_count    integer NOT NULL,
    waiting       integer NOT NULL DEFAULT 0,
    ready         integer NOT NULL DEFAULT 0,
    running       integer NOT NULL DEFAULT 0,
    failed        integer NOT NULL DEFAULT 0,
    skipped       integer NOT NULL DEFAULT 0,
    cancelled     integer NOT NULL DEFAULT 0,
    -- of the running ones, those whose first step has not been settled: no more than a window of them
    beginning     integer NOT NULL DEFAULT 0,
    join_task_id  bigint,             -- of the last join; null: nodes are unfinished since it ended
    detail        text,
    caller_context json,
    trace_context json,
    schedule_id   text,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    ended_at      timestamptz,
    deadline_at   timestamptz,
    retry_count   integer NOT NULL DEFAULT 0,
    revision      bigint NOT NULL DEFAULT 1,
    -- since when something is left to do that no settlement does: see functions/tend_job.sql
    untended_at   timestamptz,
    PRIMARY KEY (slot, namespace, process_id),
    CONSTRAINT ended_when_not_running CHECK ((state = 'running') = (ended_at IS NULL)),
    CONSTRAINT counts_are_counts CHECK (
        least(waiting, ready, running, failed, skipped, cancelled, beginning) >= 0
        AND waiting + ready + running + failed + skipped + cancelled <= node_count
        AND beginning <= running
    )
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX jobs_by_creation
    ON progressor.jobs (namespace COLLATE "C", created_at DESC, process_id COLLATE "C" DESC);
CREATE INDEX jobs_by_deadline
    ON progressor.jobs (deadline_at) WHERE (state = 'running' AND deadline_at IS NOT NULL);
CREATE INDEX jobs_untended ON progressor.jobs (untended_at) WHERE (untended_at IS NOT NULL);
CREATE INDEX jobs_running ON progressor.jobs (slot, namespace, process_id) WHERE (state = 'running');

CREATE TABLE progressor.job_nodes (
    slot               smallint NOT NULL,  -- of the leader
    namespace          text NOT NULL,
    process_id         text NOT NULL,
    ordinal            integer NOT NULL CHECK (ordinal >= 1),  -- 1 .. n within the job, without gaps
    state              progressor.node_state NOT NULL,
    begun              boolean NOT NULL DEFAULT false,  -- its first step has been settled
    -- for the index below: with the state itself in it, no change of a state would be HOT
    queued             boolean NOT NULL GENERATED ALWAYS AS (state = 'ready') STORED,
    gated              boolean NOT NULL DEFAULT false,  -- has constraints; tend_job starts it
    attempt            integer NOT NULL DEFAULT 1,
    waits_for          integer NOT NULL CHECK (waits_for >= 0),  -- predecessors that are not done
    skipped_because_of integer,            -- the ordinal of the node that failed
    revision           bigint NOT NULL,    -- of the job when it changed last
    follower_slot      smallint NOT NULL,
    created_at         timestamptz NOT NULL,
    ready_at           timestamptz,
    started_at         timestamptz,
    ended_at           timestamptz,
    name               text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 128),
    follower_namespace text NOT NULL,
    follower_id        text NOT NULL,
    predecessors       integer[] NOT NULL DEFAULT '{}',
    successors         integer[] NOT NULL DEFAULT '{}',
    args               bytea NOT NULL DEFAULT '',
    options            json,
    constraints        json,
    result             bytea,
    error_code         integer,
    error_reason       text,
    error_message      text,
    PRIMARY KEY (slot, namespace, process_id, ordinal),
    CONSTRAINT ended_when_final CHECK ((state IN ('waiting', 'ready', 'running')) = (ended_at IS NULL)),
    CONSTRAINT started_when_running CHECK (state <> 'running' OR started_at IS NOT NULL),
    CONSTRAINT ready_waits_for_nobody CHECK (state NOT IN ('ready', 'running', 'done') OR waits_for = 0),
    CONSTRAINT skipped_has_a_cause CHECK ((state = 'skipped') = (skipped_because_of IS NOT NULL))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- Those with constraints apart: who looks for the one kind would else go past all of the other.
CREATE INDEX job_nodes_ready
    ON progressor.job_nodes (slot, namespace, process_id, gated, ordinal) WHERE (queued);

-- Followers whose leader was removed while they ran; they are stopped one by one (stop_orphans).
CREATE TABLE progressor.orphans (
    slot         smallint NOT NULL,
    namespace    text NOT NULL,
    process_id   text NOT NULL,
    init_task_id bigint NOT NULL,  -- tells the process from a later one of the same id
    PRIMARY KEY (slot, namespace, process_id)
);

-- Work of which one replica does a round at a time.
CREATE TABLE progressor.duties (
    duty       text PRIMARY KEY,
    due_at     timestamptz NOT NULL,
    replica_id bigint,
    begun_at   timestamptz
);

INSERT INTO progressor.duties (duty, due_at) VALUES ('recover_jobs', '-infinity');
