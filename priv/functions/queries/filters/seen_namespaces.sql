-- Says in which namespaces a filter looks: the one that it names or, if it names none, those that its caller may see.
-- Returns: the namespaces; null: all.
CREATE FUNCTION seen_namespaces(p_filter jsonb)
RETURNS text[]
IMMUTABLE
AS $$
BEGIN
    RETURN CASE
        WHEN p_filter ? 'namespace' THEN ARRAY[p_filter ->> 'namespace']
        WHEN p_filter ? 'seen' THEN ARRAY(SELECT jsonb_array_elements_text(p_filter -> 'seen'))
    END;
END;
$$;
