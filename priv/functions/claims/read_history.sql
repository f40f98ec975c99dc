-- Reads which history of a database this is, and how far it has come. Its identity differs on each server, after each
-- promotion and recovery to a point in time, in each database, and after each restore of the schema.
-- Where a managed service keeps some of it to itself, the rest has to do.
-- Locks: none.
-- Returns: the identity; the position of the WAL, 0 if it cannot be read.
CREATE FUNCTION read_history(OUT identity text, OUT wal_position bigint)
AS $$
DECLARE
    v_system   text := '';
    v_timeline text := '';
BEGIN
    BEGIN
        v_system := (SELECT s.system_identifier FROM pg_control_system() s);
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN
        NULL;
    END;
    BEGIN
        wal_position := pg_current_wal_insert_lsn() - '0/0';
        v_timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN
        wal_position := 0;
    END;
    identity := concat_ws('/', v_system, v_timeline,
        (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), 'progressor.lineage'::regclass::oid);
END;
$$;
