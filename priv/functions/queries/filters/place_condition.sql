-- Writes that a row `p` of `processes` is on one side of a place in the order of List, for EXECUTE. The first condition
-- bounds the scan of processes_by_creation; the second alone would not.
-- Returns: the condition; null if no place is given.
CREATE FUNCTION place_condition(p_operator text, p_at timestamptz, p_namespace text, p_process_id text)
RETURNS text
STABLE
AS $$
BEGIN
    RETURN CASE WHEN p_at IS NOT NULL THEN format(
        'p.created_at %1$s= %3$L AND (p.created_at, p.namespace, p.process_id)'
            ' %2$s (%3$L, %4$L, %5$L)',
        left(p_operator, 1), p_operator, p_at, p_namespace, p_process_id) END;
END;
$$;
