-- A step that changes the status of a process, as the first one of each does, leaves its row on its
-- page (a HOT update): no index has a column that it changes. The predicates of two did. And no
-- look-up of a process by its key can take the index of List: its collation is not that of the key.
-- (Where a table's statistics still said that it was empty, PostgreSQL 18 skipped through that index:
-- 42 pages for each look-up of a fresh database, more with each process, until it was analysed.)
-- Built inside this transaction; nothing is written to processes for as long as it takes.

ALTER TABLE progressor.processes ADD COLUMN finished_at timestamptz;

UPDATE progressor.processes SET finished_at = status_changed_at WHERE status = 'finished';

ALTER TABLE progressor.processes
    ADD CONSTRAINT finished_at_when_finished CHECK ((status = 'finished') = (finished_at IS NOT NULL));

ALTER TABLE progressor.processes SET (fillfactor = 70);

DROP INDEX progressor.processes_by_creation;
DROP INDEX progressor.processes_in_error;
DROP INDEX progressor.processes_finished;

CREATE INDEX processes_by_creation
    ON progressor.processes (namespace COLLATE "C", created_at DESC, process_id COLLATE "C" DESC);

-- A process has a detail exactly while it is in error.
CREATE INDEX processes_in_error
    ON progressor.processes (namespace COLLATE "C", created_at DESC, process_id COLLATE "C" DESC)
    WHERE detail IS NOT NULL;

CREATE INDEX processes_finished
    ON progressor.processes (namespace COLLATE "C", finished_at) WHERE finished_at IS NOT NULL;
