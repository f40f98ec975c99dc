-- Processes by namespace and status, as changes of them: so many processes have gone from one status to another; from
-- null, they were created; to null, deleted. Writers only insert rows, and compact_counts merges them. Without an
-- index, since all rows are read.
CREATE TABLE progressor.process_counts (
    namespace     text   NOT NULL,
    status_before progressor.process_status,
    status_after  progressor.process_status,
    process_count bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = false
);

-- One row: whether the sums are exact. The functions of the release before do not count, so they are not while its
-- replicas run, and recount_processes scans the processes.
CREATE TABLE progressor.process_count_state (
    is_exact    boolean     NOT NULL,
    replica_id  bigint      NOT NULL,
    scanned_at  timestamptz,
    scan_due_at timestamptz NOT NULL
);

INSERT INTO progressor.process_count_state (is_exact, replica_id, scan_due_at)
SELECT NOT EXISTS (SELECT FROM progressor.processes), 0, '-infinity';
