-- Pages through the processes that match a filter (filter_conditions), of one namespace or of all, newest first. Reads
-- at most a page of each namespace, in the order of its index; or, by the beginning of their ids, all that match if they
-- are few (find_by_prefix). Where no index has the filter, it examines about p_examined_max processes at most, in windows
-- that grow (find_window), since most pages are full after the first one.
-- Locks: none.
-- Returns: at most p_limit processes behind the place p_before_*, without state and result. If they are fewer because
-- p_examined_max were examined, another row is the place of the last of these, with nothing else.
CREATE FUNCTION list_processes(
    p_filter           jsonb,
    p_before_at        timestamptz,
    p_before_namespace text,
    p_before_id        text,
    p_limit            integer,
    p_examined_max     integer
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
    v_found      tid[];
    v_is_indexed boolean := p_filter ?| '{failure_id,failure_reason,broken_from,broken_to}'
        OR coalesce(p_filter -> 'statuses' = '["error"]' OR has_scalar(p_filter -> 'metadata'), false);
    v_range      text := filter_conditions(jsonb_strip_nulls(jsonb_build_object(
        'created_from', p_filter -> 'created_from', 'created_to', p_filter -> 'created_to')));
    v_before     text := 'true';
    v_size       integer := least(1000, p_examined_max);
    v_examined   integer := 0;
    v_until      record;
    v_left       integer := p_limit;
    v_count      integer;
BEGIN
    IF p_before_at IS NOT NULL THEN
        v_before := place_condition('<', p_before_at, p_before_namespace, p_before_id);
    END IF;
    -- For what the other fields select there are indexes that need not be read from end to end.
    IF p_filter ? 'id_prefix' AND NOT v_is_indexed THEN
        v_found := find_by_prefix(p_filter ->> 'namespace', p_filter ->> 'id_prefix', 10000);
    END IF;
    LOOP
        SELECT w.*
        INTO v_until
        FROM find_window(p_filter ->> 'namespace', v_range || ' AND ' || v_before, v_size) w
        WHERE v_found IS NULL AND NOT v_is_indexed AND p_filter ?| '{statuses,id_prefix,metadata}';
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
                ELSE format(
                    '(SELECT n.name FROM namespaces n WHERE n.name IS DISTINCT FROM %L) n',
                    p_filter ->> 'but_namespace')
            END,
            CASE
                WHEN v_found IS NOT NULL THEN format('p.ctid = ANY (%L::tid[])', v_found)
                ELSE 'p.namespace = n.name COLLATE "C"'
            END,
            filter_conditions(p_filter - 'namespace'),
            concat_ws(
                ' AND ', v_before,
                place_condition('>=', v_until.at, v_until.namespace, v_until.process_id)),
            CASE
                WHEN v_found IS NOT NULL THEN 'p.created_at DESC, p.namespace COLLATE "C" DESC'
                ELSE 'p.namespace COLLATE "C", p.created_at DESC'
            END,
            v_left);
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_left := v_left - v_count;
        EXIT WHEN v_left = 0 OR v_until.at IS NULL;
        v_before := place_condition('<', v_until.at, v_until.namespace, v_until.process_id);
        v_examined := v_examined + v_size;
        IF v_examined >= p_examined_max THEN
            namespace := v_until.namespace;
            process_id := v_until.process_id;
            created_at := v_until.at;
            RETURN NEXT;
            EXIT;
        END IF;
        v_size := least(7 * v_size, p_examined_max - v_examined);
    END LOOP;
END;
$$;
