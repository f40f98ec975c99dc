-- What a bulk operation did to a process: done, skipped or failed, and the reason unless it is done; the task that it
-- created, ran again or cancelled; and what the function of the single request returned.
CREATE TYPE applied_item AS (
    result text, reason text, task_id bigint, removed boolean, leads boolean, cancelled jsonb,
    effects jsonb
);
