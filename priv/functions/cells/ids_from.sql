-- The first id of this database, and how many a second it may give out, counted from 2020 (see begin_epoch). The home cell, and
-- a database without cells, has all below 2^52, which is enough until 2156. Each other cell has 2^46 above that, enough until
-- 2088. So all stay below 2^53, which JavaScript can count to, and no two cells give out the same id.
-- Returns: both, of this database.
CREATE FUNCTION ids_from(
    OUT first_id   bigint,
    OUT per_second bigint
)
AS $$
DECLARE
    v_number int := coalesce((SELECT c.number FROM cell c), 0);
BEGIN
    IF v_number = 0 THEN
        first_id := 0;
        per_second := 1048576;
    ELSE
        first_id := 4503599627370496 + (v_number - 1) * 70368744177664;
        per_second := 32768;
    END IF;
END;
$$;
