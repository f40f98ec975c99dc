-- Seals at most p_limit entries: numbers them in the order of their ids, and chains their hashes. One replica at a
-- time does: the others find the chain locked, and nothing to do.
-- Locks: audit_chain; then the entries, which nothing else locks.
-- Returns: how many were sealed.
CREATE FUNCTION seal_audit(p_limit integer, OUT sealed_count integer)
BY INDEX
AS $$
DECLARE
    v_chain audit_chain%ROWTYPE;
    v_entry audit_entries%ROWTYPE;
BEGIN
    sealed_count := 0;
    SELECT * INTO v_chain FROM audit_chain FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR v_entry IN
        SELECT * FROM audit_entries e WHERE e.number IS NULL ORDER BY e.entry_id LIMIT p_limit
    LOOP
        v_chain.head_number := v_chain.head_number + 1;
        v_entry.number := v_chain.head_number;
        v_chain.head_hash := hash_audit_entry(v_chain.head_hash, v_entry);
        UPDATE audit_entries e
        SET number = v_chain.head_number, hash = v_chain.head_hash
        WHERE e.entry_id = v_entry.entry_id;
        sealed_count := sealed_count + 1;
    END LOOP;
    IF sealed_count > 0 THEN
        UPDATE audit_chain SET head_number = v_chain.head_number, head_hash = v_chain.head_hash;
    END IF;
END;
$$;
