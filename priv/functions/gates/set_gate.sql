-- Sets the capacity of a gate, which is created if it is missing. With a higher capacity, waiting tasks are promoted.
-- A capacity below the number of holders takes effect at once; holders that do not run yet are evicted in other
-- transactions (evict_holders), since each needs the locks of its process and of all its gates.
-- p_revision: only if the gate is at this revision; 0: at any, and also if it is missing.
-- Locks: the gate; then as settle_gates.
-- Returns: the verdict changed, not_found or revision_changed; the revision of the gate; whether holders have to be
-- evicted; and what settle_gates returns.
CREATE FUNCTION set_gate(
    LIKE own_arguments,
    p_limit     integer,
    p_namespace text,
    p_gate      text,
    p_capacity  integer,
    p_revision  bigint,
    p_audit     text
)
RETURNS TABLE (verdict text, revision bigint, is_lowered boolean, effects jsonb)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_now  timestamptz;
    v_gate gates%ROWTYPE;
BEGIN
    IF p_revision = 0 THEN
        INSERT INTO gates (namespace, gate, capacity, created_at, updated_at, revision)
        SELECT p_namespace, p_gate, p_capacity, n.at, n.at, 0
        FROM (SELECT coalesce(p_now, clock_timestamp()) AS at) n
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM lock_gates(NULL, NULL, ARRAY[p_namespace], ARRAY[p_gate]);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT * INTO v_gate FROM gates g WHERE (g.namespace, g.gate) = (p_namespace, p_gate);
    is_lowered := false;
    IF NOT FOUND THEN
        verdict := 'not_found';
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_revision <> 0 AND v_gate.revision <> p_revision THEN
        verdict := 'revision_changed';
        revision := v_gate.revision;
        RETURN NEXT;
        RETURN;
    END IF;

    UPDATE gates g
    SET capacity = p_capacity, revision = g.revision + 1, updated_at = v_now,
        lowered_at = CASE WHEN g.held > p_capacity THEN v_now END,
        lowered_before = CASE WHEN g.held > p_capacity THEN 'infinity'::timestamptz END
    WHERE (g.namespace, g.gate) = (p_namespace, p_gate)
    RETURNING 'changed', g.revision, g.lowered_at IS NOT NULL
    INTO verdict, revision, is_lowered;
    PERFORM write_audit(
        p_audit, CASE WHEN v_gate.revision > 0 THEN jsonb_build_object('capacity', v_gate.capacity) END,
        jsonb_build_object('capacity', p_capacity));
    IF NOT is_lowered THEN
        effects := settle_gates(
            v_now, p_replica_id, p_starvation_timeout, p_limit, NULL,
            p_named_in => p_namespace, p_left => ARRAY[p_gate]);
    END IF;
    RETURN NEXT;
END;
$$;
