-- Finds the processes that have the metadata of a filter, or else whose id begins as it says, if they are few. What else the
-- filter says is for the caller to check.
-- Locks: none.
-- Returns: their ctids, as of this snapshot: all, or p_limit + 1 of them; null: the filter has neither.
CREATE FUNCTION find_few(p_filter jsonb, p_limit integer)
RETURNS tid[]
STABLE
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
    v_found tid[];
BEGIN
    IF has_scalar(p_filter -> 'metadata') THEN
        v_found := ARRAY(
            SELECT p.ctid FROM processes p WHERE p.metadata @> (p_filter -> 'metadata') LIMIT p_limit + 1);
    END IF;
    IF p_filter ? 'id_prefix' AND coalesce(cardinality(v_found) > p_limit, true) THEN
        v_found := find_by_prefix(p_filter ->> 'namespace', p_filter ->> 'id_prefix', p_limit);
    END IF;
    RETURN v_found;
END;
$$;
