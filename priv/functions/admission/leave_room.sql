-- Finds the starts for which the quotas of open processes leave room, exactly: a transaction that counts holds a lock until
-- its end, and counts what those before it have started. Starts of existing processes, and those that were answered
-- before their process was removed, always have room, so that they are answered as usual.
-- Locks: an advisory lock for each namespace with a quota, in the order of its key, before anything else.
-- Returns: p_namespace, with an empty text in place of the namespace of each start without room.
CREATE FUNCTION leave_room(
    p_slot            smallint[],
    p_namespace       text[],
    p_process_id      text[],
    p_idempotency_key text[],
    p_open_max        bigint[]
)
RETURNS text[]
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(k.key)
    FROM (
        SELECT DISTINCT hashtextextended('progressor open_processes ' || i.namespace, 0) AS key
        FROM unnest(p_namespace, p_open_max) AS i (namespace, open_max)
        WHERE i.open_max IS NOT NULL
        ORDER BY 1
    ) k;

    RETURN (
        WITH item AS (
            SELECT i.*, i.open_max IS NOT NULL AND NOT EXISTS (
                SELECT FROM processes p
                WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            ) AND NOT EXISTS (
                SELECT FROM replies a
                WHERE (a.slot, a.namespace, a.process_id, a.idempotency_key)
                    = (i.slot, i.namespace, i.process_id, i.idempotency_key)
            ) AS is_limited
            FROM unnest(p_slot, p_namespace, p_process_id, p_idempotency_key, p_open_max) WITH ORDINALITY
                AS i (slot, namespace, process_id, idempotency_key, open_max, number)
        ),
        open AS MATERIALIZED (
            SELECT c.namespace, sum(c.process_count) AS process_count
            FROM (
                SELECT c.namespace, c.process_count
                FROM process_counts c
                WHERE c.status_after <> 'finished'
                UNION ALL
                SELECT c.namespace, -c.process_count
                FROM process_counts c
                WHERE c.status_before <> 'finished'
            ) c
            WHERE c.namespace = ANY (p_namespace)
            GROUP BY c.namespace
        )
        SELECT array_agg(
            CASE
                WHEN i.is_limited AND i.turn + coalesce(o.process_count, 0) > i.open_max THEN ''
                ELSE i.namespace
            END ORDER BY i.number)
        FROM (
            SELECT i.*, row_number() OVER (
                PARTITION BY i.namespace, i.is_limited ORDER BY i.number) AS turn
            FROM item i
        ) i
        LEFT JOIN open o USING (namespace)
    );
END;
$$;
