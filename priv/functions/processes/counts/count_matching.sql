-- Counts the processes that match a filter: exactly up to p_limit, above it as the planner estimates.
-- Volatile, since EXPLAIN is refused in a stable function.
-- Locks: none.
-- Returns: the count, and whether it is an estimate.
CREATE FUNCTION count_matching(p_filter jsonb, p_limit integer, OUT matched bigint, OUT is_estimate boolean)
SET jit = off
AS $$
DECLARE
    v_plan json;
BEGIN
    EXECUTE format(
        'SELECT count(*) FROM (SELECT FROM processes p WHERE %s LIMIT %s) c',
        filter_conditions(p_filter), p_limit + 1)
    INTO matched;
    is_estimate := matched > p_limit;
    IF is_estimate THEN
        EXECUTE 'EXPLAIN (FORMAT JSON) SELECT FROM processes p WHERE ' || filter_conditions(p_filter)
        INTO v_plan;
        matched := greatest(matched, (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint);
    END IF;
END;
$$;
