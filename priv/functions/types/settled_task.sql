-- A task of a batch that was settled, as settle_tasks returns it; only settle_job_tasks fills job_effects and started.
CREATE TYPE settled_task AS (
    item integer, settled_at timestamptz, process_status process_status,
    status_changed_at timestamptz, last_event_id bigint, reply_to bigint[], cancelled jsonb,
    timer_task_id bigint, timer_due_at timestamptz,
    next_task_id bigint, next_task_type task_type, next_attempt integer, next_token bigint,
    next_args bytea, next_caller_context json, next_trace_context json,
    next_history_after bigint, next_history_limit integer, next_history_backward boolean,
    next_step_timeout double precision, next_scheduled_at timestamptz,
    next_first_started_at timestamptz, effects jsonb, job_effects jsonb, started jsonb,
    next_timer_name text,
    next_has_memos boolean, next_sender json, next_tried_for double precision
);
