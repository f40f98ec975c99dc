-- A gate whose capacity is below what is held sends holders back, a few in a transaction
-- (give_way.sql). lowered_at is when that was done last, or is to begin; null: nobody has to go.
-- lowered_before is how far it has come: who came to hold the gate from then on has been looked at.
ALTER TABLE progressor.gates
    ADD COLUMN lowered_at     timestamptz,
    ADD COLUMN lowered_before timestamptz,
    ADD CONSTRAINT lowering_is_whole CHECK ((lowered_at IS NULL) = (lowered_before IS NULL));

-- Neither column changes while holders come and go, so these updates stay HOT.
CREATE INDEX gates_lowered ON progressor.gates (lowered_at) WHERE lowered_at IS NOT NULL;
