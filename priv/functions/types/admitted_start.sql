-- A start of a batch that was admitted or refused, as admit_starts returns it.
CREATE TYPE admitted_start AS (
    item integer, verdict text, admitted_at timestamptz, task_id bigint, token bigint,
    task_type task_type, task_status task_status, response bytea, error_code integer,
    error_reason text, error_message text, error_rejected boolean, error_metadata json,
    effects jsonb
);
