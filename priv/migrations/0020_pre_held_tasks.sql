-- The tasks that wait on a broken process, until it comes back. A process in error has only what brings it back in
-- the schedule: repairs, and the task that broke it, run again.
CREATE TABLE progressor.held (
    slot       smallint NOT NULL,
    namespace  text NOT NULL,
    process_id text NOT NULL,
    task_id    bigint NOT NULL,
    task_type  progressor.task_type NOT NULL,
    due_at     timestamptz,  -- of a timer
    attempt    integer NOT NULL,
    held_at    timestamptz NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT timers_keep_their_instant
        CHECK (due_at IS NOT NULL OR task_type NOT IN ('timeout', 'remove'))
);

CREATE INDEX held_by_age ON progressor.held (namespace, held_at);

-- Whether a request was acknowledged before its step began: nobody waits for it who would send it again.
ALTER TABLE progressor.tasks ADD COLUMN is_acknowledged boolean NOT NULL DEFAULT false;
