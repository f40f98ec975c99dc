-- The due schedules of one namespace, where those of another, which is paused, must not be read.
CREATE INDEX schedules_due_in_namespace ON progressor.schedules (namespace, next_at)
    WHERE next_at IS NOT NULL;
