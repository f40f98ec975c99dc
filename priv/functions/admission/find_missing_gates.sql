-- Finds the items whose constraints name a gate that does not exist, without a capacity.
-- Returns: each such item, and the first gate that it lacks.
CREATE FUNCTION find_missing_gates(p_namespace text[], p_constraints json[])
RETURNS TABLE (item integer, gate text)
STABLE
BY INDEX
AS $$
BEGIN
    RETURN QUERY
    SELECT i.item::integer, min(c.key)
    FROM unnest(p_namespace, p_constraints) WITH ORDINALITY AS i (namespace, constraints, item)
    CROSS JOIN LATERAL json_each_text(coalesce(i.constraints -> 'gates', '{}')) AS c
    WHERE c.value IS NULL
        AND NOT EXISTS (
            SELECT FROM gates g WHERE (g.namespace, g.gate) = (i.namespace, c.key)
        )
    GROUP BY i.item;
END;
$$;
