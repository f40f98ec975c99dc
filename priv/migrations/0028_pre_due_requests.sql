-- Whatever is not a timer is found at once behind a crowd of them: replies and joins too.
DROP INDEX progressor.schedule_due_requests;
CREATE INDEX schedule_due_requests ON progressor.schedule (namespace, due_at)
    WHERE due_at IS NOT NULL AND task_type NOT IN ('timeout', 'remove');
