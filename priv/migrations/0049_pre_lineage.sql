-- Which history of the database this is. A promotion, a restore, and a dump that is read back each begin another one,
-- with another identity: check_lineage notices it, raises the sequences, and begins an epoch. One row; without an
-- identity until the first replica connects.
CREATE TABLE progressor.lineage (
    identity   text,
    epoch      bigint      NOT NULL CHECK (epoch >= 1),
    changed_at timestamptz NOT NULL
);
INSERT INTO progressor.lineage (epoch, changed_at) VALUES (1, now());
