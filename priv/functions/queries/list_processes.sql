-- Pages through the processes that match a filter (filter_conditions), of one namespace or of all, newest first. Reads
-- at most a page of each namespace, in the order of its index; or, by the beginning of their ids, all that match if they
-- are few (find_by_prefix).
-- Locks: none.
-- Returns: at most p_limit processes behind the one named by p_before_*, without state and result.
CREATE FUNCTION list_processes(
    p_filter           jsonb,
    p_before_at        timestamptz,
    p_before_namespace text,
    p_before_id        text,
    p_limit            integer
)
RETURNS TABLE (
    namespace text, slot smallint, process_id text, status process_status,
    previous_status process_status, detail text, aux_state bytea, metadata jsonb, corrupted_by bigint,
    created_at timestamptz, status_changed_at timestamptz, last_event_id bigint, init_task_id bigint,
    state_version integer, broken_at timestamptz, failure_id text, failure_reason text
)
STABLE
SET jit = off
AS $$
DECLARE
    v_found tid[];
BEGIN
    -- For what the other fields select there are indexes that need not be read from end to end.
    IF p_filter ? 'id_prefix'
        AND NOT p_filter ?| '{metadata,failure_id,failure_reason,broken_from,broken_to}'
        AND p_filter -> 'statuses' IS DISTINCT FROM '["error"]'
    THEN
        v_found := find_by_prefix(p_filter ->> 'namespace', p_filter ->> 'id_prefix', 10000);
    END IF;
    RETURN QUERY EXECUTE format(
        $query$
        SELECT p.*
        FROM %1$s
        CROSS JOIN LATERAL (
            SELECT p.namespace, p.slot, p.process_id, p.status, p.previous_status,
                coalesce(p.detail, p.end_reason), ''::bytea, p.metadata, p.corrupted_by, p.created_at,
                p.status_changed_at, p.last_event_id, p.init_task_id, p.state_version,
                CASE WHEN p.detail IS NOT NULL THEN p.broken_at END,
                CASE WHEN p.detail IS NOT NULL THEN p.failure_id END,
                CASE WHEN p.detail IS NOT NULL THEN p.failure_reason END
            FROM processes p
            WHERE %2$s AND %3$s AND %4$s
            ORDER BY %5$s, p.process_id COLLATE "C" DESC
            LIMIT %6$s
        ) p
        ORDER BY p.created_at DESC, p.namespace COLLATE "C" DESC, p.process_id COLLATE "C" DESC
        LIMIT %6$s
        $query$,
        CASE
            WHEN v_found IS NOT NULL THEN '(SELECT) n'
            WHEN p_filter ? 'namespace' THEN format('(SELECT %L::text) n (name)', p_filter ->> 'namespace')
            ELSE 'namespaces n'
        END,
        CASE
            WHEN v_found IS NOT NULL THEN format('p.ctid = ANY (%L::tid[])', v_found)
            ELSE 'p.namespace = n.name COLLATE "C"'
        END,
        filter_conditions(p_filter - 'namespace'),
        CASE
            WHEN p_before_at IS NULL THEN 'true'
            -- The first condition ends the scan of the index; the second alone would not.
            ELSE format(
                'p.created_at <= %1$L AND (p.created_at, p.namespace COLLATE "C", p.process_id COLLATE "C")'
                    ' < (%1$L, %2$L, %3$L)',
                p_before_at, p_before_namespace, p_before_id)
        END,
        CASE
            WHEN v_found IS NOT NULL THEN 'p.created_at DESC, p.namespace COLLATE "C" DESC'
            ELSE 'p.namespace COLLATE "C", p.created_at DESC'
        END,
        p_limit);
END;
$$;
