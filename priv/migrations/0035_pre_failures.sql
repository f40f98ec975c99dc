-- What has broken processes, in groups: what settlements insert into `new_failures`, where none waits for another, is
-- added to `failures` within seconds.
CREATE TABLE progressor.failures (
    namespace         text        NOT NULL,
    failure_id        text        NOT NULL,
    reason            text        NOT NULL,
    message           text        NOT NULL,
    task_type         progressor.task_type,
    release           text        NOT NULL,
    first_seen_at     timestamptz NOT NULL,
    last_seen_at      timestamptz NOT NULL,
    failure_count     bigint      NOT NULL CHECK (failure_count > 0),
    sample_process_id text        NOT NULL,
    PRIMARY KEY (namespace, failure_id)
) WITH (fillfactor = 50);

CREATE TABLE progressor.new_failures (
    failure_number bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace      text        NOT NULL,
    failure_id     text        NOT NULL,
    reason         text        NOT NULL,
    message        text        NOT NULL,
    task_type      progressor.task_type,
    release        text        NOT NULL,
    seen_at        timestamptz NOT NULL,
    failure_count  bigint      NOT NULL CHECK (failure_count > 0),
    process_id     text        NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
