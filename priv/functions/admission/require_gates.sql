-- Checks that each gate named by a constraint exists or is given a capacity: a gate may have been deleted since
-- find_missing_gates was called.
-- Returns: nothing; raises a serialization failure for a missing gate, and the caller repeats the request.
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
