-- Finds out whether metadata in a filter has anything that processes_by_metadata can look up: with nothing but empty objects
-- and arrays, as in {"x": {}}, that index would be read from end to end.
-- Returns: whether there is something; null if there is no metadata.
CREATE FUNCTION has_scalar(p_metadata jsonb)
RETURNS boolean
IMMUTABLE
AS $$
BEGIN
    RETURN jsonb_path_exists(p_metadata, '$.** ? (@.type() <> "object" && @.type() <> "array")');
END;
$$;
