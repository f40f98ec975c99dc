-- An operation that follows also takes up processes that match later, each of them once, which the index finds out.
ALTER TABLE progressor.bulk_operations ADD COLUMN follow boolean NOT NULL DEFAULT false;
ALTER TABLE progressor.bulk_items ADD COLUMN follow boolean NOT NULL DEFAULT false;

CREATE INDEX bulk_items_followed ON progressor.bulk_items (operation_id, init_task_id) WHERE follow;
