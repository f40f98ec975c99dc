-- A task with its new lease, all that its step needs, and its process as it is.
CREATE TYPE claimed AS (
    slot smallint, namespace text, process_id text, task_id bigint, task_type task_type,
    attempt integer, token bigint, args bytea, caller_context json, trace_context json,
    history_after bigint, history_limit integer, history_backward boolean,
    step_timeout double precision, scheduled_at timestamptz, started_at timestamptz,
    first_started_at timestamptz, due_at timestamptz, set_by bigint, process_status process_status,
    previous_status process_status, detail text, aux_state bytea, metadata jsonb,
    corrupted_by bigint, created_at timestamptz, status_changed_at timestamptz,
    last_event_id bigint, init_task_id bigint, spent bigint[], part json,
    state_version integer, timer_name text,
    has_memos boolean, sender json, tried_for double precision
);
