-- Queues, upkeep and readiness are called the same everywhere. Only names change.
ALTER TABLE progressor.gate_lines RENAME TO gate_queues;
ALTER TABLE progressor.gate_queues RENAME COLUMN line TO queue;
ALTER INDEX progressor.gate_lines_pkey RENAME TO gate_queues_pkey;
ALTER INDEX progressor.gate_lines_by_age RENAME TO gate_queues_by_age;
ALTER INDEX progressor.gate_lines_by_head RENAME TO gate_queues_by_head;
ALTER TABLE progressor.gated RENAME COLUMN line TO queue;
ALTER TABLE progressor.gated RENAME COLUMN ripe_at TO ready_at;
ALTER TABLE progressor.gated RENAME CONSTRAINT in_line_for_gates TO queued_for_gates;

ALTER TABLE progressor.duties RENAME TO upkeep_rounds;
ALTER TABLE progressor.upkeep_rounds RENAME COLUMN duty TO kind;
ALTER INDEX progressor.duties_pkey RENAME TO upkeep_rounds_pkey;
ALTER TABLE progressor.jobs RENAME COLUMN untended_at TO upkeep_due_at;
ALTER INDEX progressor.jobs_untended RENAME TO jobs_upkeep_due;
