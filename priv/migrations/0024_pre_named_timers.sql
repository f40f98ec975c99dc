-- Several timers per process, each with a name.
ALTER TABLE progressor.tasks ADD COLUMN timer_name text;  -- null: the timer without a name, or no timer

-- Whether the process has ever had a timer with a name: only then a settlement that changes a timer looks for others.
ALTER TABLE progressor.processes ADD COLUMN has_named_timers boolean NOT NULL DEFAULT false;

-- In the schedule a process has all of its timers. The earliest is found first.
DROP INDEX progressor.schedule_timer;
CREATE INDEX schedule_timer ON progressor.schedule (slot, namespace, process_id, due_at, task_id)
    WHERE task_type IN ('timeout', 'remove');
