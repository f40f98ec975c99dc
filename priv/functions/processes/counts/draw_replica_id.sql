-- Draws the id of a replica that starts. If every id before it was drawn here, or a scan has begun since, so is this
-- one: process_count_state.replica_id. An older release draws its ids without this, which tells that it has run,
-- whenever that was.
-- Locks: process_count_state.
-- Returns: the id.
CREATE FUNCTION draw_replica_id()
RETURNS bigint
AS $$
DECLARE
    v_last  bigint;
    v_drawn bigint;
BEGIN
    PERFORM FROM process_count_state FOR UPDATE;
    v_last := last_replica_id();
    v_drawn := nextval('replica_ids');
    UPDATE process_count_state s
    SET replica_id = v_drawn
    WHERE s.replica_id = v_last AND v_drawn = v_last + 1;
    RETURN v_drawn;
END;
$$;
