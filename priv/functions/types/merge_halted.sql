-- Merges the effects that two calls leave to the replica.
-- Returns: the effects of both calls.
CREATE FUNCTION merge_halted(p_first halted, p_second halted)
RETURNS halted
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT coalesce(p_first.cancelled || p_second.cancelled, p_first.cancelled, p_second.cancelled),
        coalesce(p_first.jobs || p_second.jobs, p_first.jobs, p_second.jobs),
        coalesce(p_first.effects || p_second.effects, p_first.effects, p_second.effects)
$$;
