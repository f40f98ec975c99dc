-- Moves the deadlines of running steps, as long as their leases hold: p_by seconds from now, but no later than
-- p_longest after the step began, and never to an earlier instant. A lease expires p_grace after the deadline.
-- Locks: processes in key order; then their rows of running.
-- Returns: one row per item whose lease holds, with the seconds from now to its deadline.
CREATE FUNCTION extend_leases(
    p_now        timestamptz,
    p_grace      double precision,
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    p_task_id    bigint[],
    p_token      bigint[],
    p_by         double precision[],
    p_longest    double precision[]
)
RETURNS TABLE (item integer, seconds double precision)
BY ITEM
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM
    FROM (
        SELECT i.slot, i.namespace, i.process_id
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
    UPDATE running r
    SET expires_at = greatest(r.expires_at, make_interval(secs => p_grace) + least(
        v_now + make_interval(secs => p_by[l.item]),
        r.leased_at + make_interval(secs => p_longest[l.item])))
    FROM (
        SELECT i.item::integer AS item, r.*
        FROM unnest(p_token) WITH ORDINALITY AS i (token, item)
        CROSS JOIN LATERAL (
            SELECT r.slot, r.ctid AS running_row
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                    = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
                AND (r.task_id, r.token) = (p_task_id[i.item], i.token)
            OFFSET 0
        ) r
    ) l
    WHERE r.ctid = l.running_row AND r.slot BETWEEN l.slot AND l.slot
    RETURNING l.item, extract(epoch FROM r.expires_at - v_now)::double precision - p_grace;
END;
$$;
