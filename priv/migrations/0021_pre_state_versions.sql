-- The version of a process's aux_state, as its processor says; 0: it said none.
ALTER TABLE progressor.processes ADD COLUMN state_version integer NOT NULL DEFAULT 0;
