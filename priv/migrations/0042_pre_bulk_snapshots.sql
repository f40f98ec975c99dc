-- `snapshot` tells what an operation found from what has changed since, whatever clocks say; null in operations of older
-- releases. `attempt_count` counts how often an item was left for later because its process was locked; `cursor_item` is
-- where the present pass over the items is, if it has left some of them behind; else null, and it is at `next_item`.
ALTER TABLE progressor.bulk_operations ADD COLUMN snapshot pg_snapshot, ADD COLUMN cursor_item bigint;
ALTER TABLE progressor.bulk_items ADD COLUMN attempt_count integer NOT NULL DEFAULT 0;
