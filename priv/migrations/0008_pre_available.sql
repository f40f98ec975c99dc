-- The status of a task that has passed its gates and waits for nothing but a worker. Alone in its file:
-- a new value of an enum cannot be used in the transaction that adds it.

ALTER TYPE progressor.task_status ADD VALUE 'available' BEFORE 'running';
