-- Reads the task that each of some processes runs, or else the first that waits there: what List
-- tells of a page. In the form of the waits of read_processes.
--
-- By key, for what the page holds: a few look-ups for each; of those that p_is_gated says are gated, as
-- read_gated_waits does it.
-- Locks: none. STABLE: all of it sees one snapshot, which is later than that of the page.
-- Returns: a row for each process that has an unfinished task, with the number of its item, from 1.
CREATE FUNCTION read_first_waits(
    p_now                timestamptz,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[],
    p_is_gated           boolean[]
)
RETURNS TABLE (number bigint, wait json)
STABLE
BY INDEX
SET enable_bitmapscan = off
AS $$
DECLARE
    v_number bigint[];  -- the items that are gated
BEGIN
    RETURN QUERY
    SELECT i.number, json_build_array(
        w.task_id, w.task_type, w.status, (extract(epoch FROM w.due_at) * 1000000)::bigint,
        w.attempt, w.replica_id, t.error_code, t.error_reason, t.error_message,
        t.error_rejected, t.error_metadata, coalesce(p_now, now()) >= w.due_at,
        (extract(epoch FROM t.created_at) * 1000000)::bigint,
        (extract(epoch FROM w.leased_at) * 1000000)::bigint,
        (extract(epoch FROM w.expires_at) * 1000000)::bigint
    )
    FROM unnest(p_slot, p_namespace, p_process_id, p_is_gated)
        WITH ORDINALITY
        AS i (slot, namespace, process_id, is_gated, number)
    CROSS JOIN LATERAL (
        SELECT u.*
        FROM (
            SELECT h.task_id, h.task_type, 'running'::task_status AS status,
                NULL::timestamptz AS due_at, h.attempt, h.replica_id, h.leased_at, h.expires_at,
                0 AS rank
            FROM running h
            WHERE (h.slot, h.namespace, h.process_id) = (i.slot, i.namespace, i.process_id)
            UNION ALL
            (SELECT c.task_id, c.task_type, c.status, c.due_at, c.attempt, NULL, NULL, NULL, 1
            FROM schedule c
            WHERE (c.slot, c.namespace, c.process_id) = (i.slot, i.namespace, i.process_id)
                AND c.task_type NOT IN ('timeout', 'remove')
            ORDER BY c.slot, c.namespace, c.process_id, c.task_id
            LIMIT 1)
            UNION ALL
            SELECT s.task_id, s.task_type, s.status, s.due_at, s.attempt, NULL, NULL, NULL, 2
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (i.slot, i.namespace, i.process_id)
                AND s.task_type IN ('timeout', 'remove')
        ) u
        ORDER BY u.rank
        LIMIT 1
    ) w
    CROSS JOIN LATERAL (
        SELECT t.error_code, t.error_reason, t.error_message, t.error_rejected, t.error_metadata,
            t.created_at
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (i.slot, i.namespace, i.process_id, w.task_id)
        OFFSET 0
    ) t
    WHERE NOT i.is_gated;
    IF NOT true = ANY (p_is_gated) THEN
        RETURN;
    END IF;

    SELECT array_agg(i.number ORDER BY i.number)
    INTO v_number
    FROM unnest(p_is_gated) WITH ORDINALITY AS i (is_gated, number)
    WHERE i.is_gated;
    RETURN QUERY
    SELECT v_number[g.number], g.waits -> 0
    FROM read_gated_waits(
        p_now, p_starvation_timeout, 1,
        ARRAY(SELECT p_slot[n.number] FROM unnest(v_number) WITH ORDINALITY AS n (number, place)
            ORDER BY n.place),
        ARRAY(SELECT p_namespace[n.number]
            FROM unnest(v_number) WITH ORDINALITY AS n (number, place) ORDER BY n.place),
        ARRAY(SELECT p_process_id[n.number]
            FROM unnest(v_number) WITH ORDINALITY AS n (number, place) ORDER BY n.place)) g;
END;
$$;
