-- Finds processes whose id begins with a prefix, in one namespace or in all. In a namespace of more than 20,000 processes it looks
-- them up by the primary key, in each slot: the index of List would be read from end to end, which takes longer.
-- Locks: none.
-- Returns: their ctids, as of this snapshot: all, or p_limit + 1 of them.
CREATE FUNCTION find_by_prefix(p_namespace text, p_prefix text, p_limit integer)
RETURNS tid[]
STABLE
SET jit = off
AS $$
DECLARE
    v_found tid[];
BEGIN
    EXECUTE format(
        $query$
        SELECT coalesce(array_agg(f.ctid), '{}')
        FROM (
            SELECT p.ctid
            FROM (
                SELECT n.name, coalesce((
                    SELECT sum(c.process_count) FILTER (WHERE c.status_before IS NULL)
                        - coalesce(sum(c.process_count) FILTER (WHERE c.status_after IS NULL), 0)
                    FROM process_counts c
                    WHERE c.namespace = n.name
                ), 0) > 20000 AS is_large
                FROM namespaces n
                WHERE n.name = %3$L OR %3$L IS NULL
                OFFSET 0
            ) n
            CROSS JOIN LATERAL (
                SELECT p.ctid
                FROM processes p
                WHERE n.is_large AND p.slot = ANY (%1$L) AND p.namespace = n.name
                    AND p.process_id ^@ %2$L
                UNION ALL
                -- Not ^@, with which the key might be used.
                SELECT p.ctid
                FROM processes p
                WHERE NOT n.is_large AND p.namespace = n.name COLLATE "POSIX"
                    AND p.process_id COLLATE "POSIX" >= %2$L
                    AND p.process_id COLLATE "POSIX" <= %2$L || repeat(chr(1114111), 64)
            ) p
            LIMIT %4$s
        ) f
        $query$,
        ARRAY(SELECT generate_series(0, 1023))::smallint[], p_prefix, p_namespace, p_limit + 1)
    INTO v_found;
    RETURN v_found;
END;
$$;
