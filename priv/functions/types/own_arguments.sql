-- What a replica says of itself to all functions that may promote tasks with constraints. p_now: null for the
-- clock of PostgreSQL, except in tests.
CREATE TYPE own_arguments AS (
    p_now timestamptz, p_replica_id bigint, p_starvation_timeout double precision
);
