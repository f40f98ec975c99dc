-- Of a job that has ended: what it left unfinished has failed, or will, instead of being cancelled. So it is
-- where a schedule had started it, and it lost a replica (functions/fail_jobs.sql).
ALTER TABLE progressor.jobs ADD COLUMN fails_nodes boolean NOT NULL DEFAULT false;
