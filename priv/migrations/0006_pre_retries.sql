-- Tasks whose last attempt failed: few, so that they are counted behind any crowd of timers (see
-- storage/queues.sql). Built inside this transaction: the rows are looked through once, a quarter of
-- a second for a million timers.
CREATE INDEX schedule_retries ON progressor.schedule (namespace, due_at)
    WHERE attempt > 0 AND due_at IS NOT NULL;
