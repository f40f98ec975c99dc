-- Sees to it that each gate that a constraint names is there, or comes with a capacity: somebody may have
-- deleted one since find_missing_gates was asked.
-- Locks: none.
-- Returns: nothing; it raises a serialization failure for one that is not: the request is to be made again.
CREATE FUNCTION require_gates(p_namespace text[], p_constraints json[])
RETURNS void
AS $$
DECLARE
    v_gate text;
BEGIN
    SELECT m.gate INTO v_gate FROM find_missing_gates(p_namespace, p_constraints) m LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'gate % was deleted', v_gate USING ERRCODE = 'serialization_failure';
    END IF;
END;
$$;
