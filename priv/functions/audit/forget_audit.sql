-- Deletes at most p_limit sealed entries from the front of the chain, which are older than p_age, and keeps the hash of
-- the last one: the first that is left is chained to it.
-- Locks: audit_chain; then the entries.
-- Returns: how many were deleted.
CREATE FUNCTION forget_audit(p_age interval, p_limit integer)
RETURNS integer
BY INDEX
AS $$
DECLARE
    v_chain audit_chain%ROWTYPE;
    v_until timestamptz := clock_timestamp() - p_age;
    v_entry record;
    v_last  bigint;
    v_hash  bytea;
    v_count integer;
BEGIN
    SELECT * INTO v_chain FROM audit_chain FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    FOR v_entry IN
        SELECT e.number, e.hash, e.written_at
        FROM audit_entries e
        WHERE e.number > v_chain.anchor_number
        ORDER BY e.number
        LIMIT p_limit
    LOOP
        EXIT WHEN v_entry.written_at >= v_until;
        v_last := v_entry.number;
        v_hash := v_entry.hash;
    END LOOP;
    IF v_last IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE audit_chain SET anchor_number = v_last, anchor_hash = v_hash;
    DELETE FROM audit_entries e WHERE e.number <= v_last;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END;
$$;
