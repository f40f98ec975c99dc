-- Reads the sequence of replica ids.
-- Returns: the id drawn last; 0: none was drawn.
CREATE FUNCTION last_replica_id()
RETURNS bigint
AS $$
BEGIN
    RETURN (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM replica_ids s);
END;
$$;
