-- Operations on all processes that matched a filter. The process of the same id in the namespace progressor.operations
-- runs it; `after_*` is the last process that was read for the snapshot, `next_item` the first item without a result.
CREATE TABLE progressor.bulk_operations (
    operation_id text PRIMARY KEY,
    slot smallint NOT NULL,
    kind text NOT NULL,
    state text NOT NULL DEFAULT 'matching'
        CHECK (state IN ('matching', 'running', 'done', 'stopped')),
    filter jsonb NOT NULL,
    args bytea NOT NULL,
    reason text NOT NULL,
    author text NOT NULL,
    rate_max integer,
    failed_share_max double precision NOT NULL,
    failed_window integer NOT NULL,
    stop_reason text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    ended_at timestamptz,
    matched_count bigint NOT NULL DEFAULT 0,
    done_count bigint NOT NULL DEFAULT 0,
    skipped_count bigint NOT NULL DEFAULT 0,
    failed_count bigint NOT NULL DEFAULT 0,
    next_item bigint NOT NULL DEFAULT 1,
    after_created_at timestamptz,
    after_namespace text,
    after_process_id text
);

CREATE INDEX bulk_operations_by_creation ON progressor.bulk_operations (
    created_at DESC, operation_id COLLATE "C" DESC);

-- The processes of an operation, as they were when they matched. `broken_by` and `broken_at` identify a breaking;
-- `task_id` is the task to cancel, and then the task that the operation created or ran again.
CREATE TABLE progressor.bulk_items (
    operation_id text NOT NULL,
    item bigint NOT NULL,
    slot smallint NOT NULL,
    namespace text NOT NULL,
    process_id text NOT NULL,
    init_task_id bigint NOT NULL,
    broken_by bigint,
    broken_at timestamptz,
    task_id bigint,
    result text CHECK (result IN ('done', 'skipped', 'failed')),
    reason text,
    ended_at timestamptz,
    PRIMARY KEY (operation_id, item)
) WITH (fillfactor = 70);

CREATE INDEX bulk_items_failed ON progressor.bulk_items (operation_id, item) WHERE result = 'failed';
