-- Finds where this database goes on when it cannot know which ids have been given out: it follows the clock.
-- Returns: the first id.
CREATE FUNCTION ids_now()
RETURNS bigint
AS $$
DECLARE
    v_seconds numeric := extract(epoch FROM clock_timestamp()) - 1577836800;
BEGIN
    RETURN (SELECT i.first_id + floor(v_seconds * i.per_second) FROM ids_from() i);
END;
$$;
