-- Concatenates two JSON arrays, each of which may be null.
-- Returns: both; null if both are.
CREATE FUNCTION merge_json(p_first jsonb, p_second jsonb)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT coalesce(p_first || p_second, p_first, p_second)
$$;
