-- What counts for `elapsed_max` of a task that waits for another attempt: the time of its attempts so far, and of the waits
-- that the retry policy sets between them. Null: nothing.
ALTER TABLE progressor.tasks ADD COLUMN tried_for interval;
