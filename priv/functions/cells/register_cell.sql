-- Gives a cell its number, in the home cell; the first one is the home cell itself, number 0.
-- Locks: cells.
-- Returns: the number that the cell has.
CREATE FUNCTION register_cell(p_name text)
RETURNS int
AS $$
DECLARE
    v_number int;
BEGIN
    LOCK TABLE cells IN SHARE ROW EXCLUSIVE MODE;
    SELECT c.number INTO v_number FROM cells c WHERE c.name = p_name;
    IF v_number IS NULL THEN
        INSERT INTO cells (number, name)
        SELECT coalesce(max(c.number) + 1, 0), p_name FROM cells c
        RETURNING number INTO v_number;
    END IF;
    RETURN v_number;
END;
$$;
