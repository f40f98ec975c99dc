-- Deletes a gate that has no holders and that no unfinished task names.
-- Locks: the gate.
-- Returns: deleted, not_found or in_use.
CREATE FUNCTION delete_gate(p_namespace text, p_gate text, p_audit text, OUT verdict text)
SET lock_timeout = '2s'
AS $$
DECLARE
    v_held     integer;
    v_capacity integer;
BEGIN
    SELECT g.held, g.capacity
    INTO v_held, v_capacity
    FROM gates g
    WHERE (g.namespace, g.gate) = (p_namespace, p_gate)
    FOR UPDATE;
    IF NOT FOUND THEN
        verdict := 'not_found';
        RETURN;
    END IF;
    -- Who names it holds a lock that we have waited for: constrain_tasks. All are looked at, which is
    -- for an operator's rare request.
    IF v_held > 0 OR EXISTS (
        SELECT FROM gated g WHERE g.namespace = p_namespace AND p_gate = ANY (g.gates)
    ) THEN
        verdict := 'in_use';
        RETURN;
    END IF;
    DELETE FROM gates g WHERE (g.namespace, g.gate) = (p_namespace, p_gate);
    PERFORM write_audit(p_audit, jsonb_build_object('capacity', v_capacity), NULL);
    verdict := 'deleted';
END;
$$;
