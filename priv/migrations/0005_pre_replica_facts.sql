-- With each heartbeat a replica tells what it knows of its namespaces, so that every replica can say
-- why a task waits. Null: a release that does not tell.

ALTER TABLE progressor.replicas
    -- By namespace, at most 200: [places taken, places, seconds since its processor was reached].
    ADD COLUMN facts json;
