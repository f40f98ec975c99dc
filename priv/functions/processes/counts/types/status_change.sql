-- A change of the status of a process, for process_counts. One that is created has no status before, one that is
-- deleted has none after.
CREATE TYPE status_change AS (
    namespace     text COLLATE "C",
    status_before process_status,
    status_after  process_status
);
