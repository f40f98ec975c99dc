-- Counts the processes that match a filter: exactly if an index leaves no more than p_limit to be examined. If not, the
-- count is an estimate: such a share of what the planner expects in the order of an index (walked_filter) as matched of
-- p_limit; if none did, what the planner expects to match.
-- Locks: none.
-- Returns: the count, and whether it is an estimate.
CREATE FUNCTION count_matching(p_filter jsonb, p_limit integer, OUT matched bigint, OUT is_estimate boolean)
SET jit = off
AS $$
DECLARE
    v_walked   jsonb := walked_filter(p_filter);
    v_walk     text := filter_conditions(v_walked || jsonb_strip_nulls(jsonb_build_object(
        'namespace', p_filter -> 'namespace', 'but_namespace', p_filter -> 'but_namespace',
        'seen', p_filter -> 'seen')));
    v_few      tid[];
    v_of_few   bigint;
    v_examined bigint;
BEGIN
    -- Broken processes are few, as a rule.
    IF NOT v_walked ? 'statuses' THEN
        v_few := find_few(p_filter, p_limit);
    END IF;
    IF v_few IS NULL OR cardinality(v_few) > p_limit THEN
        EXECUTE format(
            $query$
            SELECT count(*) FILTER (WHERE e.matches), count(*)
            FROM (SELECT %s AS matches FROM processes p WHERE %s LIMIT %s) e
            $query$,
            filter_conditions(p_filter), v_walk, p_limit + 1)
        INTO matched, v_examined;
        is_estimate := v_examined > p_limit;
        IF NOT is_estimate THEN
            RETURN;
        END IF;
        v_few := coalesce(v_few, find_few(p_filter, p_limit));
    END IF;
    is_estimate := coalesce(cardinality(v_few) > p_limit, true);
    -- Some are enough for a count that is not smaller than what is known. OFFSET 0: by ctid, not by what an index has.
    EXECUTE 'SELECT count(*) FROM (SELECT p.* FROM processes p WHERE p.ctid = ANY ($1) OFFSET 0) p WHERE '
        || filter_conditions(p_filter)
    INTO v_of_few
    USING CASE WHEN is_estimate THEN v_few[:1000] ELSE v_few END;
    IF is_estimate THEN
        v_of_few := greatest(v_of_few, matched, CASE
            WHEN matched > 0 THEN expect_processes(v_walk) * matched::numeric / v_examined
            ELSE expect_processes(filter_conditions(p_filter)) END);
    END IF;
    matched := v_of_few;
END;
$$;
