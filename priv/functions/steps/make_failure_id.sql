-- Makes the id of a group of failures from what its failures have in common; `p_failure` is the JSON that settle_tasks
-- takes. Any two of 10,000 groups have the same id with a probability of 2 in ten million, and are then one.
-- Returns: 12 hex digits.
CREATE FUNCTION make_failure_id(p_namespace text, p_reason text, p_failure json)
RETURNS text
LANGUAGE sql
STABLE
AS $$
    SELECT left(encode(sha256(convert_to(concat_ws(E'\n', p_namespace, coalesce(p_reason, ''),
        coalesce(p_failure ->> 'task_type', ''), coalesce(p_failure ->> 'release', ''),
        p_failure ->> 'message'), 'UTF8')), 'hex'), 12)
$$;
