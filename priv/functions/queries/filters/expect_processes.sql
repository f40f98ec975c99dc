-- Asks the planner how many processes meet conditions. Volatile, since EXPLAIN is refused in a stable function.
-- Locks: none.
-- Returns: what it expects.
CREATE FUNCTION expect_processes(p_conditions text)
RETURNS bigint
STRICT
AS $$
DECLARE
    v_plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) SELECT FROM processes p WHERE ' || p_conditions INTO v_plan;
    RETURN (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::bigint;
END;
$$;
