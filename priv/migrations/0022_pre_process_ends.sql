-- Why a finished process was ended from outside of its steps; null: a step completed it. And the replicas in which
-- callers wait for its end.
ALTER TABLE progressor.processes
    ADD COLUMN end_reason text,
    ADD COLUMN awaited_by bigint[];
