-- Makes this database a cell, unless it is one already. A cell other than the home cell gives out ids of its own range from
-- then on, so a database that has given out others cannot become one. It begins where the clock is (begin_epoch): the cell may
-- have had another database before, which was lost.
-- p_number: null to ask only. p_installation: that of the home cell; null in the home cell, which draws one.
-- Locks: cell.
-- Returns: which cell this database is now, nulls if none; and whether it was refused because it has processes.
CREATE FUNCTION become_cell(
    p_name         text,
    p_number       int,
    p_installation uuid,
    OUT name         text,
    OUT number       int,
    OUT installation uuid,
    OUT is_used      boolean
)
AS $$
DECLARE
    v_first    bigint;
    v_sequence regclass;
BEGIN
    LOCK TABLE cell IN SHARE ROW EXCLUSIVE MODE;
    SELECT c.name, c.number, c.installation INTO name, number, installation FROM cell c;
    is_used := false;
    IF number IS NOT NULL OR p_number IS NULL THEN
        RETURN;
    END IF;
    IF p_number > 0 AND EXISTS (SELECT FROM processes) THEN
        is_used := true;
        RETURN;
    END IF;
    INSERT INTO cell (name, number, installation)
    VALUES (p_name, p_number, coalesce(p_installation, gen_random_uuid()))
    RETURNING cell.name, cell.number, cell.installation INTO name, number, installation;
    IF p_number > 0 THEN
        v_first := ids_now();
        FOREACH v_sequence IN ARRAY numbered_sequences()
        LOOP
            PERFORM setval(v_sequence, v_first);
        END LOOP;
    END IF;
END;
$$;
