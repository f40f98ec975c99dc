-- The tables that grow are vacuumed after so many rows, however large they are: with a share, a table of a billion rows
-- would gather 50 million dead ones first, and a single vacuum would take hours. Vacuum skips pages that are
-- all-visible, and the indexes while dead rows are in few pages, so that its cost follows the changes, not the size.
-- A task changes within milliseconds and then never again, so that the first vacuum of a page can freeze it, as with
-- events; a process changes more often.
ALTER TABLE progressor.processes SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_freeze_min_age = 1000000
);

ALTER TABLE progressor.tasks SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_freeze_min_age = 0
);

ALTER TABLE progressor.events SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000
);
