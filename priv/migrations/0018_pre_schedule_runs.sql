-- An instant of a schedule is called a run everywhere. Only names change.
ALTER TABLE progressor.firings RENAME TO schedule_runs;
ALTER TABLE progressor.schedule_runs RENAME COLUMN fired_at TO recorded_at;
ALTER INDEX progressor.firings_pkey RENAME TO schedule_runs_pkey;
ALTER INDEX progressor.firings_running RENAME TO schedule_runs_running;
ALTER INDEX progressor.firings_queued RENAME TO schedule_runs_queued;
ALTER INDEX progressor.firings_by_key RENAME TO schedule_runs_by_key;
ALTER TYPE progressor.firing_cause RENAME TO schedule_run_cause;
ALTER TYPE progressor.firing_state RENAME TO schedule_run_state;
