-- What broke a process is kept with it, for List and for counts: `broken_at` is the latest time it broke, also if it
-- broke again while it was in error. All three are null unless the process is in error.
ALTER TABLE progressor.processes
    ADD COLUMN broken_at timestamptz,
    ADD COLUMN failure_id text,
    ADD COLUMN failure_reason text;
