-- Stores memos of running steps, as long as their leases hold; the first value of a key stays. A task has at most 256
-- memos of 16 MiB in all. Items may be of the same task, with different keys. Of items of one task whose sum is too
-- large, the largest are refused: one that is too large by itself takes no room from others.
-- Locks: processes in key order; then, of those processes alone: running, tasks, memos.
-- Returns: one row per item whose lease holds: stored, known (with the value that is stored), too_many or too_large.
CREATE FUNCTION store_memos(
    p_now        timestamptz,
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_task_id    bigint[],
    p_token      bigint[],
    p_key        text[],
    p_value      bytea[]
)
RETURNS TABLE (item integer, verdict text, value bytea)
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM
    FROM (
        SELECT DISTINCT i.slot, i.namespace, i.process_id
        FROM unnest(p_slot, p_namespace, p_process_id) AS i (slot, namespace, process_id)
        ORDER BY i.slot, i.namespace, i.process_id
    ) i
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
        FOR NO KEY UPDATE
    ) p;
    v_now := coalesce(p_now, clock_timestamp());

    RETURN QUERY
    WITH leased AS MATERIALIZED (
        SELECT i.item::integer AS item, r.*, p_key[i.item] AS key, p_value[i.item] AS value,
            k.value AS known,
            s.count + count(*) FILTER (WHERE k.value IS NULL) OVER before AS count,
            s.size + coalesce(sum(octet_length(p_value[i.item]))
                FILTER (WHERE k.value IS NULL) OVER before, 0) AS size
        FROM unnest(p_token) WITH ORDINALITY AS i (token, item)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS running_row, r.slot, r.namespace, r.process_id, r.task_id, r.has_memos
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                    = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
                AND (r.task_id, r.token) = (p_task_id[i.item], i.token)
            OFFSET 0
        ) r
        LEFT JOIN LATERAL (
            SELECT m.value
            FROM memos m
            WHERE (m.slot, m.namespace, m.process_id, m.task_id, m.key)
                = (r.slot, r.namespace, r.process_id, r.task_id, p_key[i.item])
            OFFSET 0
        ) k ON true
        CROSS JOIN LATERAL (
            SELECT count(*) AS count, coalesce(sum(octet_length(m.value)), 0) AS size
            FROM memos m
            WHERE (m.slot, m.namespace, m.process_id, m.task_id)
                = (r.slot, r.namespace, r.process_id, r.task_id)
        ) s
        -- The smallest first: of what follows a refused one, nothing would have fitted without it.
        WINDOW before AS (
            PARTITION BY r.slot, r.namespace, r.process_id
            ORDER BY octet_length(p_value[i.item]), i.item
        )
    ),
    judged AS MATERIALIZED (
        SELECT l.*,
            CASE
                WHEN l.known IS NOT NULL THEN 'known'
                WHEN l.count > 256 THEN 'too_many'
                WHEN l.size > 16 * 1024 * 1024 THEN 'too_large'
                ELSE 'stored'
            END AS verdict
        FROM leased l
    ),
    stored AS (
        INSERT INTO memos (slot, namespace, process_id, task_id, key, value, created_at)
        SELECT j.slot, j.namespace, j.process_id, j.task_id, j.key, j.value, v_now
        FROM judged j
        WHERE j.verdict = 'stored'
    ),
    leases AS (
        UPDATE running r
        SET has_memos = true
        FROM judged j
        WHERE r.ctid = j.running_row AND r.slot BETWEEN j.slot AND j.slot
            AND j.verdict = 'stored' AND j.has_memos IS NULL
    ),
    records AS (
        UPDATE tasks t
        SET has_memos = true
        FROM judged j
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (j.slot, j.namespace, j.process_id, j.task_id)
            AND j.verdict = 'stored' AND j.has_memos IS NULL
    )
    SELECT j.item, j.verdict, CASE WHEN j.verdict = 'known' THEN j.known END
    FROM judged j;
END;
$$;
