-- The first vacuum of a page freezes its processes too. Vacuum skips pages that are all-visible; with an age at which rows
-- may be frozen, the pages of finished processes stayed all-visible and unfrozen, and all waited for one vacuum of the
-- whole table, against wraparound.
ALTER TABLE progressor.processes SET (autovacuum_freeze_min_age = 0);
