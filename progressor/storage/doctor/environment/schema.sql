-- What PostgreSQL's catalogue says of our schema. Nothing in here locks or writes.

-- name: schema_exists
SELECT to_regclass('progressor.migrations') IS NOT NULL AS exists

-- name: read_migrations
SELECT number, name, checksum
FROM progressor.migrations
ORDER BY number

-- name: read_indexes
-- is_valid: it is complete, and is used. A build that failed leaves one that costs writes alone.
SELECT c.relname AS name, t.relname AS on_table, i.indisvalid AND i.indisready AS is_valid
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'progressor' AND t.relkind IN ('r', 'p')
ORDER BY c.relname

-- name: read_partitions
-- Of each partitioned table: its key, the bounds of its partitions, and the first of these that is not supported.
SELECT c.relname AS name, pg_get_partkeydef(c.oid) AS key,
    ARRAY(
        SELECT pg_get_expr(t.relpartbound, t.oid)
        FROM pg_catalog.pg_inherits h
        JOIN pg_catalog.pg_class t ON t.oid = h.inhrelid
        WHERE h.inhparent = c.oid
    ) AS bounds,
    (
        SELECT min(t.relname || CASE
            WHEN t.oid = p.partdefid THEN ' is a default partition'
            ELSE ' is not an ordinary table'
        END)
        FROM pg_catalog.pg_inherits h
        JOIN pg_catalog.pg_class t ON t.oid = h.inhrelid
        WHERE h.inhparent = c.oid AND (t.oid = p.partdefid OR t.relkind <> 'r')
    ) AS problem
FROM pg_catalog.pg_partitioned_table p
JOIN pg_catalog.pg_class c ON c.oid = p.partrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'progressor' AND NOT c.relispartition
ORDER BY c.relname

-- name: read_collations
-- Indexes of ours in an order that a library defines: its version when they were built, as far as PostgreSQL knows,
-- and today's.
SELECT c.relname AS name, t.relname AS on_table, l.collname AS collation, v.noted, v.current
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_collation l ON l.oid = ANY (i.indcollation)
JOIN pg_catalog.pg_database d ON d.datname = current_database()
CROSS JOIN LATERAL (
    SELECT d.datcollversion AS noted, pg_database_collation_actual_version(d.oid) AS current
    WHERE l.collprovider = 'd'
    UNION ALL
    SELECT l.collversion, pg_collation_actual_version(l.oid)
    WHERE l.collprovider <> 'd'
) v
WHERE n.nspname = 'progressor' AND v.noted IS NOT NULL
ORDER BY c.relname, l.collname

-- name: read_database_collation
SELECT d.datname AS name, d.datcollversion AS noted, pg_database_collation_actual_version(d.oid) AS current
FROM pg_catalog.pg_database d
WHERE d.datname = current_database()

-- name: read_tables
-- Of each table: how autovacuum is set, how much is dead, when it was vacuumed last, how large it is.
SELECT c.relname AS name,
    pg_total_relation_size(c.oid) AS bytes,
    coalesce('autovacuum_enabled=false' = ANY (c.reloptions)
        OR 'autovacuum_enabled=off' = ANY (c.reloptions), false) AS is_vacuum_off,
    coalesce(s.n_live_tup, 0) AS live_count,
    coalesce(s.n_dead_tup, 0) AS dead_count,
    extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))
        ::double precision AS vacuumed_ago
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid
WHERE n.nspname = 'progressor' AND c.relkind = 'r'
ORDER BY bytes DESC, c.relname

-- name: read_autovacuum
-- Without track_counts autovacuum does not know where to go.
SELECT current_setting('autovacuum') AS autovacuum, current_setting('track_counts') AS track_counts

-- name: read_transaction_ages
SELECT age(d.datfrozenxid) AS transaction_age, mxid_age(d.datminmxid) AS multixact_age
FROM pg_catalog.pg_database d
WHERE d.datname = current_database()
