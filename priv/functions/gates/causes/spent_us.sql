-- Tells how a task with constraints has spent its life until p_now, in microseconds: in each gated_state, in their
-- order, and running. While it is available it waits for a worker until its latest attempt has begun. All of them
-- together are p_now less its creation, exactly.
-- Returns: six parts.
CREATE FUNCTION spent_us(p_now timestamptz, p_task gated, p_started_at timestamptz)
RETURNS bigint[]
IMMUTABLE
AS $$
DECLARE
    v_at     integer := array_position(enum_range(NULL::gated_state), p_task.state);
    v_until  timestamptz := greatest(p_now, p_task.state_since);
    v_runs   timestamptz := v_until;
BEGIN
    IF p_task.state = 'available' AND p_started_at >= p_task.state_since THEN
        v_runs := least(p_started_at, v_until);
    END IF;
    p_task.spent_us[v_at] := p_task.spent_us[v_at]
        + (extract(epoch FROM v_runs - p_task.state_since) * 1000000)::bigint;
    p_task.spent_us[6] := p_task.spent_us[6]
        + (extract(epoch FROM v_until - v_runs) * 1000000)::bigint;
    RETURN p_task.spent_us;
END;
$$;
