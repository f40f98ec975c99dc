-- Writes a filter of processes as conditions on a row `p` of `processes`, for EXECUTE: so each filter gets a plan of its
-- own, made for its values. `p_filter` is a filter_document of storage/rows/filters.py; a field that is absent matches everything.
-- The collation is that of the indexes of List, which no lookup by key may use. `detail IS NOT NULL` says the same as
-- status = 'error', and is the predicate of the indexes of broken processes.
-- Returns: the conditions; 'true' if everything matches.
CREATE FUNCTION filter_conditions(p_filter jsonb)
RETURNS text
STABLE
AS $$
BEGIN
    RETURN (SELECT coalesce(nullif(concat_ws(' AND ',
        'p.namespace = ' || quote_literal(f.namespace) || ' COLLATE "POSIX"',
        'p.namespace COLLATE "POSIX" = ANY (' || quote_literal(f.seen) || '::text[])',
        'p.namespace <> ' || quote_literal(f.but_namespace),
        CASE WHEN f.statuses = '{error}' OR f.failure_id IS NOT NULL OR f.failure_reason IS NOT NULL
                OR f.broken_from IS NOT NULL OR f.broken_to IS NOT NULL
            THEN 'p.detail IS NOT NULL' END,
        CASE WHEN f.statuses <> '{error}'
            THEN 'p.status = ANY (' || quote_literal(f.statuses) || '::process_status[])' END,
        'p.created_at >= ' || quote_literal(f.created_from),
        'p.created_at < ' || quote_literal(f.created_to),
        -- Not p.metadata, with which the index might be used, and all be read that have the same (find_few).
        'coalesce(p.metadata, ''{}'') @> ' || quote_literal(f.metadata),
        'p.failure_id COLLATE "POSIX" = ' || quote_literal(f.failure_id),
        'p.failure_reason COLLATE "POSIX" = ' || quote_literal(f.failure_reason),
        'p.broken_at >= ' || quote_literal(f.broken_from),
        'p.broken_at < ' || quote_literal(f.broken_to),
        'p.process_id COLLATE "POSIX" ^@ ' || quote_literal(f.id_prefix),
        CASE WHEN f.has_task THEN 'find_cancellable(p.slot, p.namespace, p.process_id) IS NOT NULL' END
    ), ''), 'true')
    FROM jsonb_to_record(p_filter) AS f (
        namespace text, statuses process_status[], created_from timestamptz, created_to timestamptz,
        metadata jsonb, failure_id text, failure_reason text, broken_from timestamptz,
        broken_to timestamptz, id_prefix text, but_namespace text, seen text[], has_task boolean));
END;
$$;
