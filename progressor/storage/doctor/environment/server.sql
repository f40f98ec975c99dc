-- Who else is at work in PostgreSQL, and how the server is set. Nothing in here locks or writes.

-- name: count_hidden_sessions
-- Sessions of this database whose state and times are hidden from this role: those of other roles, unless
-- it has pg_read_all_stats.
SELECT count(*) AS count, current_user AS role
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database()
    AND NOT pg_has_role(a.usesysid, 'USAGE')
    AND NOT pg_has_role('pg_read_all_stats', 'USAGE')

-- name: read_holders
-- Sessions of this database that keep vacuum from its work: idle in a transaction, or in one for long;
-- and those of any kind (a standby's feedback) with an old snapshot. Autovacuum holds none back, and
-- this session does not count.
SELECT a.pid, a.usename AS role, a.application_name, a.state, a.backend_type,
    extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS open_for,
    extract(epoch FROM clock_timestamp() - a.state_change)::double precision AS state_for,
    age(a.backend_xmin) AS snapshot_age
FROM pg_catalog.pg_stat_activity a
WHERE a.pid <> pg_backend_pid()
    AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
    AND (a.datname = current_database() OR a.datname IS NULL)
    AND (
        (starts_with(a.state, 'idle in transaction')
            AND a.state_change < clock_timestamp() - %(idle)s)
        OR a.xact_start < clock_timestamp() - %(open)s
        OR age(a.backend_xmin) > %(snapshot_age)s
    )
ORDER BY a.xact_start NULLS LAST, a.pid

-- name: read_prepared
SELECT p.gid AS name, p.owner AS role,
    extract(epoch FROM clock_timestamp() - p.prepared)::double precision AS open_for
FROM pg_catalog.pg_prepared_xacts p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - %(open)s
ORDER BY p.prepared

-- name: read_slots
-- Slots that hold back vacuum by an old snapshot, or keep much WAL. A slot that lost its WAL keeps none.
SELECT s.slot_name AS name, s.active AS is_active, s.wal_status,
    greatest(age(s.xmin), age(s.catalog_xmin)) AS snapshot_age,
    coalesce(pg_wal_lsn_diff(
        CASE
            WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn()
        END, s.restart_lsn), 0)::bigint AS wal_bytes
FROM pg_catalog.pg_replication_slots s
ORDER BY s.slot_name

-- name: read_lineage
SELECT l.epoch, to_char(l.changed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS changed_at
FROM progressor.lineage l

-- name: count_connections
-- Of all databases; walsenders count apart. is_ours: of a replica on this database.
SELECT count(*) AS used,
    count(*) FILTER (
        WHERE a.datname = current_database() AND starts_with(a.application_name, 'progressor')
    ) AS ours,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer
        - coalesce(current_setting('reserved_connections', true)::integer, 0) AS allowed
FROM pg_catalog.pg_stat_activity a
WHERE a.datname IS NOT NULL AND a.backend_type IS DISTINCT FROM 'autovacuum worker'

-- name: read_backend
SELECT pg_backend_pid() AS backend

-- name: read_server
SELECT current_setting('server_version') AS version,
    current_setting('server_version_num')::integer AS version_number,
    current_setting('server_encoding') AS encoding,
    pg_is_in_recovery() AS is_standby,
    extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision AS up_for

-- name: read_settings
-- is_own: set for this role or session alone, and this role may not write here: it is not a replica's then.
-- default_transaction_read_only, since this very transaction is read-only on purpose.
SELECT s.name, s.setting,
    s.source IN ('user', 'database user', 'client', 'session') AND NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'progressor' AND c.relname = 'processes'
            AND has_table_privilege(c.oid, 'INSERT')
    ) AS is_own
FROM pg_catalog.pg_settings s
WHERE s.name IN (
    'fsync', 'full_page_writes', 'synchronous_commit', 'default_transaction_read_only')

-- name: read_log_settings
-- Those of auto_explain are missing where it is not loaded, the last before PostgreSQL 16 too.
SELECT s.name, s.setting
FROM pg_catalog.pg_settings s
WHERE s.name IN (
    'log_min_duration_statement', 'log_min_duration_sample', 'log_transaction_sample_rate',
    'log_statement', 'log_parameter_max_length', 'log_parameter_max_length_on_error',
    'auto_explain.log_min_duration', 'auto_explain.log_parameter_max_length')

-- name: read_engine_roles
-- The roles of the replicas that are connected; of this session, if none is.
WITH engine AS (
    SELECT DISTINCT a.usename AS role
    FROM pg_catalog.pg_stat_activity a
    WHERE a.datname = current_database()
        AND a.application_name IN (
            'progressor front', 'progressor worker', 'progressor scan', 'progressor heartbeat')
)
SELECT r.rolname AS role, r.rolsuper AS is_super,
    coalesce(pg_has_role(r.oid, n.nspowner, 'USAGE'), false) AS is_owner
FROM pg_catalog.pg_roles r
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'progressor'
WHERE r.rolname IN (SELECT e.role FROM engine e)
    OR r.rolname = current_user AND NOT EXISTS (SELECT FROM engine)
ORDER BY r.rolname

-- name: read_relaxed_roles
-- Whom ALTER ROLE or ALTER DATABASE tells not to wait for the disk, of those who may write here: what is
-- in force in this session is not what a replica has that connects as another role. The table is
-- looked up by hand: by its name it would be an error where it is missing.
SELECT coalesce(r.rolname, 'every role') AS role,
    coalesce(d.datname, 'every database') AS database
FROM pg_catalog.pg_db_role_setting s
LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'progressor'
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'processes'
WHERE EXISTS (
        SELECT
        FROM unnest(s.setconfig) AS setting
        WHERE lower(setting) IN ('synchronous_commit=off', 'synchronous_commit=false',
            'synchronous_commit=no', 'synchronous_commit=0')
    )
    AND (s.setdatabase = 0 OR d.datname = current_database())
    AND (s.setrole = 0 OR has_table_privilege(s.setrole, c.oid, 'INSERT'))
ORDER BY 1, 2
