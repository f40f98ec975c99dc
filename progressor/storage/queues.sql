-- name: count_waiting
-- Counts the tasks that wait in each namespace: those that are due, the retries and the timers
-- ahead, and those behind a task of their own process; up to a limit of each. For how long: since the
-- oldest was due; since the first attempt of the oldest of the hundred retries with most attempts;
-- since the request behind with the lowest id was admitted, or a timer there was due.
--
-- Each count ends with the limit, and reads what it counts by an index; running is read once, for all
-- namespaces: it is as short as there are workers. Of tasks a hundred rows are read for the retries,
-- and one for all that is behind. OFFSET 0 keeps a look-up by key from becoming a join.
-- Locks: none.
WITH held AS MATERIALIZED (
    SELECT r.namespace, array_agg(r.slot) AS slots, array_agg(r.process_id) AS process_ids
    FROM progressor.running r
    GROUP BY r.namespace
)
SELECT n.namespace, due.task_count, extract(epoch FROM clock.now - due.oldest_at)::float8,
    ahead.task_count - retries.task_count, retries.task_count,
    extract(epoch FROM clock.now - retries.tried_since)::float8,
    behind.task_count, extract(epoch FROM clock.now - behind.oldest_at)::float8
FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS now) clock
CROSS JOIN unnest(%(namespace)s::text[]) AS n (namespace)
LEFT JOIN held ON held.namespace = n.namespace
CROSS JOIN LATERAL (
    SELECT count(*) AS task_count, min(d.due_at) AS oldest_at
    FROM (
        SELECT s.due_at
        FROM progressor.schedule s
        WHERE s.namespace = n.namespace
            AND s.status = 'waiting'
            AND s.due_at <= clock.now
        ORDER BY s.namespace, s.due_at
        LIMIT %(limit)s
    ) d
) due
CROSS JOIN LATERAL (
    WITH a AS MATERIALIZED (
        SELECT s.slot, s.process_id, s.task_id, s.attempt
        FROM progressor.schedule s
        WHERE s.namespace = n.namespace
            AND s.attempt > 0
            -- Not "= 'waiting'": by schedule_due it would walk past every timer.
            AND s.status <> 'blocked'
            AND s.due_at > clock.now
        ORDER BY s.namespace, s.due_at
        LIMIT %(limit)s
    )
    SELECT (SELECT count(*) FROM a) AS task_count, min(t.first_started_at) AS tried_since
    FROM (
        SELECT *
        FROM a
        ORDER BY a.attempt DESC, a.task_id
        LIMIT 100
    ) o
    CROSS JOIN LATERAL (
        SELECT t.first_started_at
        FROM progressor.tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (o.slot, n.namespace, o.process_id, o.task_id)
        OFFSET 0
    ) t
) retries
CROSS JOIN LATERAL (
    -- The retries among them too: from the index alone, which does not tell one from the other.
    SELECT count(*) AS task_count
    FROM (
        SELECT
        FROM progressor.schedule s
        WHERE s.namespace = n.namespace
            AND s.status = 'waiting'
            AND s.due_at > clock.now
        ORDER BY s.namespace, s.due_at
        LIMIT %(limit)s + retries.task_count
    ) a
) ahead
CROSS JOIN LATERAL (
    WITH b AS MATERIALIZED (
        SELECT w.*
        FROM unnest(held.slots, held.process_ids) AS r (slot, process_id)
        CROSS JOIN LATERAL (
            SELECT s.slot, s.process_id, s.task_id, s.task_type, s.due_at
            FROM progressor.schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (r.slot, n.namespace, r.process_id)
            OFFSET 0
        ) w
        UNION ALL
        -- Behind a request that waits itself, for a worker or for its retry.
        SELECT w.*
        FROM (
            SELECT s.slot, s.process_id, s.task_id
            FROM progressor.schedule s
            WHERE s.namespace = n.namespace
                AND s.task_type IN ('init', 'call', 'notify', 'repair')
                AND s.due_at IS NOT NULL
            ORDER BY s.namespace, s.due_at
            LIMIT %(limit)s
        ) h
        CROSS JOIN LATERAL (
            SELECT s.slot, s.process_id, s.task_id, s.task_type, s.due_at
            FROM progressor.schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (h.slot, n.namespace, h.process_id)
                AND s.task_id <> h.task_id
            OFFSET 0
        ) w
        LIMIT %(limit)s
    )
    SELECT count(*) AS task_count,
        least(
            min(b.due_at) FILTER (
                WHERE b.task_type IN ('timeout', 'remove') AND b.due_at <= clock.now
            ),
            (
                SELECT t.created_at
                FROM (
                    SELECT *
                    FROM b
                    WHERE b.task_type NOT IN ('timeout', 'remove')
                    ORDER BY b.task_id
                    LIMIT 1
                ) o
                CROSS JOIN LATERAL (
                    SELECT t.created_at
                    FROM progressor.tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (o.slot, n.namespace, o.process_id, o.task_id)
                    OFFSET 0
                ) t
            )
        ) AS oldest_at
    FROM b
) behind
