-- A request of a batch that was admitted or refused, as admit_requests returns it.
CREATE TYPE admitted_request AS (
    item integer, verdict text, admitted_at timestamptz, task_id bigint, token bigint, free boolean,
    task_type task_type, task_status task_status, response bytea, error_code integer,
    error_reason text, error_message text, error_rejected boolean, error_metadata json,
    process_status process_status, previous_status process_status, detail text, aux_state bytea,
    metadata jsonb, corrupted_by bigint, created_at timestamptz, status_changed_at timestamptz,
    last_event_id bigint, init_task_id bigint, part json,
    effects jsonb, state_version integer
);
