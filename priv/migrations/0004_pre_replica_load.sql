-- With each heartbeat a replica tells by which lease timeout it goes, what it carries, and how far its
-- clock is from this one. Null: a release that does not tell, or nothing measured yet.

ALTER TABLE progressor.replicas
    -- How old its heartbeat may be before others take its tasks; null: the one of whoever asks.
    ADD COLUMN lease_timeout interval,
    -- Steps in hand, and callers who wait, at the last heartbeat.
    ADD COLUMN step_count integer,
    ADD COLUMN caller_count integer,
    -- Seconds by which its clock is ahead of PostgreSQL's, as measured by the heartbeat before.
    ADD COLUMN clock_offset double precision;
