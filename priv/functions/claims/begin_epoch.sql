-- Puts the sequences beyond all that the history before can have given out, in commits that may be lost.
-- They follow the clock, 2^20 for each second since 2020, or 2^15 (ids_from): beyond any history that gives out fewer, also one
-- that branched off later than this one and was given up. So nothing is added where they are behind the clock: if they ran ahead
-- of it, the next history could not know by how much. An epoch is the millisecond in which it begins, for the same reason.
-- Each replica gets a lease timeout from now on to notice: its own last heartbeat may be among what was lost, and nobody may take
-- its steps while it still runs them.
-- Locks: process_count_state, then replicas. The caller has locked lineage.
-- Returns: the epoch that begins.
CREATE FUNCTION begin_epoch(p_before bigint)
RETURNS bigint
AS $$
DECLARE
    v_seconds      numeric := extract(epoch FROM clock_timestamp());
    v_next         bigint;
    v_last_replica bigint;
    v_sequence     regclass;
    v_drawn        bigint;
BEGIN
    PERFORM FROM process_count_state FOR UPDATE;
    v_last_replica := last_replica_id();
    v_next := ids_now();
    FOREACH v_sequence IN ARRAY numbered_sequences()
    LOOP
        v_drawn := nextval(v_sequence);
        -- A clock that was set back.
        PERFORM setval(v_sequence, CASE WHEN v_drawn < v_next THEN v_next ELSE v_drawn + 4294967296 END);
    END LOOP;
    -- The counts are as exact as they were: no replica has started in between (draw_replica_id).
    UPDATE process_count_state s
    SET replica_id = last_replica_id()
    WHERE s.replica_id = v_last_replica;
    UPDATE replicas
    SET heartbeat_at = clock_timestamp();
    RETURN greatest(p_before + 1, floor(1000 * v_seconds));
END;
$$;
