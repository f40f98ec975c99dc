-- What keeps the cost of a step flat as the tables grow. The reasons, with what was measured, stand
-- under "Growth" in priv/README.md. New settings hold for pages that are written from now on.

-- The requests that found no place: few, so that those behind a crowd of timers are found at once.
-- Built inside this transaction: the rows are looked through once, a quarter of a second for a
-- million timers.
CREATE INDEX schedule_due_requests ON progressor.schedule (namespace, due_at)
    WHERE due_at IS NOT NULL AND task_type IN ('init', 'call', 'notify', 'repair');

CREATE INDEX replies_by_creation ON progressor.replies (created_at);

ALTER TABLE progressor.tasks SET (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

ALTER TABLE progressor.processes SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

ALTER TABLE progressor.events SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_freeze_min_age = 0
);

ALTER TABLE progressor.schedule SET (
    fillfactor = 100,
    vacuum_index_cleanup = on
);

ALTER TABLE progressor.running SET (
    vacuum_index_cleanup = on
);

ALTER TABLE progressor.replies SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000
);
