-- The task by which a leader is told that all nodes of its job have ended. Alone in its file: a new
-- value of an enum cannot be used in the transaction that adds it.

ALTER TYPE progressor.task_type ADD VALUE 'join';
