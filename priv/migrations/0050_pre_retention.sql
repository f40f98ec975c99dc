-- Retention is a round that one replica holds.
INSERT INTO progressor.upkeep_rounds (kind, due_at) VALUES ('retention', '-infinity');
