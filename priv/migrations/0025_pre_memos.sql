-- The results of parts of steps that must not be done twice: stored while the step runs, for later attempts of its task.
CREATE TABLE progressor.memos (
    slot       smallint NOT NULL,
    namespace  text NOT NULL,
    process_id text NOT NULL,
    task_id    bigint NOT NULL,
    key        text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 256),
    value      bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, task_id, key)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Whether there are any, null for no: a step without them looks nothing up.
ALTER TABLE progressor.tasks ADD COLUMN has_memos boolean;
ALTER TABLE progressor.running ADD COLUMN has_memos boolean;
