-- Pages through the processes that match a filter (filter_conditions), of one namespace or of all, newest first. Reads
-- at most a page of each namespace, in the order of an index. Of what that index does not decide (walked_filter), it examines
-- about p_examined_max processes at most, and no more than it can in p_seconds_max, besides the first window. The windows
-- grow (find_window), since most pages are full after the first one. If that is not, and an index of something else
-- has few that match (find_few), it reads these instead.
-- Locks: none.
-- Returns: at most p_limit processes behind the place p_before_*, without state and result. If they are fewer because
-- no more were examined, another row is the place of the last of these, with nothing else.
CREATE FUNCTION list_processes(
    p_filter           jsonb,
    p_before_at        timestamptz,
    p_before_namespace text,
    p_before_id        text,
    p_limit            integer,
    p_examined_max     integer,
    p_seconds_max      double precision
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
    v_begun      timestamptz := clock_timestamp();
    v_seconds    double precision;
    v_found      tid[];
    v_walked     jsonb := walked_filter(p_filter);
    v_is_walked  boolean := NOT v_walked @> (p_filter - '{namespace,but_namespace,seen}'::text[]);
    v_seen       text[] := seen_namespaces(p_filter);
    v_before     text := 'true';
    v_size       integer := greatest(p_examined_max / 50, 1);
    v_examined   integer := 0;
    v_few_max    integer := greatest(p_examined_max / 5, 100);
    v_until      record;
    v_is_many    boolean := false;
    v_left       integer := p_limit;
    v_count      integer;
BEGIN
    IF p_before_at IS NOT NULL THEN
        v_before := place_condition('<', p_before_at, p_before_namespace, p_before_id);
    END IF;
    LOOP
        IF v_examined > 0 AND v_found IS NULL AND NOT v_is_many THEN
            v_found := find_few(p_filter, v_few_max);
            v_is_many := coalesce(cardinality(v_found) > v_few_max, true);
            v_found := CASE WHEN NOT v_is_many THEN v_found END;
        END IF;
        SELECT w.*
        INTO v_until
        FROM find_window(
            v_seen, filter_conditions(v_walked) || ' AND ' || v_before, v_size) w
        WHERE v_is_walked AND v_found IS NULL;
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
                FROM %7$s p
                WHERE %2$s AND %3$s AND %4$s
                ORDER BY %5$s, p.process_id COLLATE "POSIX" DESC
                LIMIT %6$s
            ) p
            ORDER BY p.created_at DESC, p.namespace DESC, p.process_id DESC
            LIMIT %6$s
            $query$,
            CASE
                WHEN v_found IS NOT NULL THEN '(SELECT) n'
                WHEN p_filter ? 'namespace' THEN format('(SELECT %L::text) n (name)', p_filter ->> 'namespace')
                WHEN v_seen IS NOT NULL
                    THEN format('(SELECT n.name FROM namespaces n WHERE n.name = ANY (%L::text[])) n', v_seen)
                ELSE format(
                    '(SELECT n.name FROM namespaces n WHERE n.name IS DISTINCT FROM %L) n',
                    p_filter ->> 'but_namespace')
            END,
            CASE
                WHEN v_found IS NOT NULL THEN 'true'
                ELSE 'p.namespace = n.name COLLATE "POSIX"'
            END,
            -- What was found by metadata may be of any namespace.
            filter_conditions(CASE
                WHEN v_found IS NOT NULL THEN p_filter
                WHEN p_filter ? 'namespace' THEN p_filter - 'namespace'
                ELSE p_filter - 'seen'
            END),
            concat_ws(
                ' AND ', v_before,
                place_condition('>=', v_until.at, v_until.namespace, v_until.process_id)),
            CASE
                WHEN v_found IS NOT NULL THEN 'p.created_at DESC, p.namespace DESC'
                ELSE 'p.namespace COLLATE "POSIX", p.created_at DESC'
            END,
            v_left,
            -- OFFSET 0: by ctid, not by what an index has of the other conditions.
            CASE
                WHEN v_found IS NOT NULL
                THEN format('(SELECT p.* FROM processes p WHERE p.ctid = ANY (%L::tid[]) OFFSET 0)', v_found)
                ELSE 'processes'
            END);
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_left := v_left - v_count;
        EXIT WHEN v_left = 0 OR v_until.at IS NULL;
        v_before := place_condition('<', v_until.at, v_until.namespace, v_until.process_id);
        v_examined := v_examined + v_size;
        v_seconds := extract(epoch FROM clock_timestamp() - v_begun);
        IF v_examined >= p_examined_max OR v_seconds >= p_seconds_max THEN
            namespace := v_until.namespace;
            process_id := v_until.process_id;
            created_at := v_until.at;
            RETURN NEXT;
            EXIT;
        END IF;
        -- As many as fit into the rest of the time, if it goes on like this.
        v_size := least(
            4 * v_size, p_examined_max - v_examined,
            greatest(v_examined * (p_seconds_max - v_seconds) / nullif(v_seconds, 0), p_examined_max / 500, 1));
    END LOOP;
END;
$$;
