-- The task by which a process gets the answer to a message. Alone in its file: a new value of an enum cannot be used
-- in the transaction that adds it.

ALTER TYPE progressor.task_type ADD VALUE 'reply';
