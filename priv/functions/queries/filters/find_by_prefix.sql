-- Finds processes whose id begins with a prefix, in some namespaces or, if they are null, in all. In a namespace of more than 20,000
-- processes it looks them up by the primary key, in each slot: the index of List would be read from end to end, which takes
-- longer. It does not look in namespaces that together cost as much as one of p_entries_max entries of that index.
-- Locks: none.
-- Returns: their ctids, as of this snapshot: all, or p_limit + 1 of them; null: it did not look.
CREATE FUNCTION find_by_prefix(p_namespaces text[], p_prefix text, p_limit integer, p_entries_max integer)
RETURNS tid[]
STABLE
SET jit = off
AS $$
DECLARE
    v_names    text[];
    v_is_large boolean[];
    v_entries  bigint;
    v_found    tid[];
BEGIN
    SELECT array_agg(n.name), array_agg(n.process_count > 20000), sum(least(n.process_count, 20000))
    INTO v_names, v_is_large, v_entries
    FROM (
        SELECT n.name, coalesce((
            SELECT sum(c.process_count) FILTER (WHERE c.status_before IS NULL)
                - coalesce(sum(c.process_count) FILTER (WHERE c.status_after IS NULL), 0)
            FROM process_counts c
            WHERE c.namespace = n.name
        ), 0) AS process_count
        FROM namespaces n
        WHERE n.name = ANY (p_namespaces) OR p_namespaces IS NULL
    ) n;
    IF v_entries > p_entries_max THEN
        RETURN NULL;
    END IF;
    EXECUTE format(
        $query$
        SELECT coalesce(array_agg(f.ctid), '{}')
        FROM (
            SELECT p.ctid
            FROM (SELECT unnest(%3$L::text[]) AS name, unnest(%4$L::boolean[]) AS is_large OFFSET 0) n
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
            LIMIT %5$s
        ) f
        $query$,
        ARRAY(SELECT generate_series(0, 1023))::smallint[], p_prefix, v_names, v_is_large, p_limit + 1)
    INTO v_found;
    RETURN v_found;
END;
$$;
