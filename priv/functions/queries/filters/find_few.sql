-- Finds the processes that have the metadata of a filter, or else whose id begins as it says, if they are few. What else the
-- filter says is for the caller to check. Where the planner expects many times as many to have the metadata, that index is not
-- read: all of its entries would be, before the first process is found.
-- Locks: none.
-- Returns: their ctids, as of this snapshot: all, or p_limit + 1 of them; null: the filter has neither.
CREATE FUNCTION find_few(p_filter jsonb, p_limit integer)
RETURNS tid[]
STABLE
SET jit = off
SET enable_seqscan = off
-- Holds a bitmap of each row that may be found, not of pages whose rows would all be checked.
SET work_mem = '32MB'
AS $$
DECLARE
    v_condition text := 'p.metadata @> ' || quote_literal(p_filter -> 'metadata');
    v_found     tid[];
BEGIN
    -- Statistics tell nothing about what fewer than one in a hundred have.
    IF has_scalar(p_filter -> 'metadata')
        AND expect_processes(v_condition) <= greatest(10 * p_limit, expect_processes('true') / 50)
    THEN
        v_found := ARRAY(
            SELECT p.ctid FROM processes p WHERE p.metadata @> (p_filter -> 'metadata') LIMIT p_limit + 1);
    END IF;
    IF p_filter ? 'id_prefix' AND coalesce(cardinality(v_found) > p_limit, true) THEN
        v_found := find_by_prefix(
            seen_namespaces(p_filter), p_filter ->> 'id_prefix', p_limit, 100000);
    END IF;
    RETURN v_found;
END;
$$;
