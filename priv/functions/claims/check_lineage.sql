-- Checks whether the database is still on the history that the caller knows. Every new connection begins with it.
-- A promoted standby, a restored backup and a dump that was read back may lack commits of the history before, and their
-- sequences would give out its ids and tokens again. So the first one to notice raises the sequences and begins an epoch, in one
-- transaction, before they are used.
-- p_identity, p_epoch, p_position: the history that the caller belongs to, and a position of the WAL up to which its commits
-- were durable; null, 0, 0: none yet. A server that is behind that position was set back without a trace of its own,
-- such as to a snapshot of its disk.
-- Locks: lineage, then as begin_epoch; none unless something has changed.
-- Returns: the identity and the epoch; the position of the WAL; whether the epoch has begun now.
CREATE FUNCTION check_lineage(
    p_identity text,
    p_epoch    bigint,
    p_position bigint,
    OUT identity     text,
    OUT epoch        bigint,
    OUT wal_position bigint,
    OUT is_new       boolean
)
AS $$
DECLARE
    v_now   record;
    v_known lineage%ROWTYPE;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE read_only_sql_transaction USING MESSAGE = 'the server is a standby';
    END IF;
    SELECT * INTO v_now FROM read_history();
    SELECT * INTO STRICT v_known FROM lineage;
    is_new := false;
    IF v_known.identity IS DISTINCT FROM v_now.identity
        OR (v_now.wal_position < p_position AND v_known.identity = p_identity AND v_known.epoch = p_epoch)
    THEN
        -- Another one may have been faster.
        SELECT * INTO STRICT v_known FROM lineage FOR UPDATE;
        is_new := coalesce(v_known.identity <> v_now.identity
            OR (v_now.wal_position < p_position AND v_known.identity = p_identity AND v_known.epoch = p_epoch), false);
        IF is_new THEN
            v_known.epoch := begin_epoch(v_known.epoch);
        END IF;
        UPDATE lineage l
        SET identity = v_now.identity,
            epoch = v_known.epoch,
            changed_at = CASE WHEN is_new THEN clock_timestamp() ELSE l.changed_at END
        WHERE is_new OR l.identity IS NULL;
    END IF;
    identity := v_now.identity;
    epoch := v_known.epoch;
    wal_position := v_now.wal_position;
END;
$$;
