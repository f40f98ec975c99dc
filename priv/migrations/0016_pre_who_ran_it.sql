-- Which replica had the latest lease of a task, also after its end; and the one that carried the last step of
-- a node's follower. Null: none, or it was carried by a release that did not write it.
ALTER TABLE progressor.tasks ADD COLUMN replica_id bigint;
ALTER TABLE progressor.job_nodes
    ADD COLUMN replica_id bigint,
    ADD COLUMN updated_at timestamptz;
