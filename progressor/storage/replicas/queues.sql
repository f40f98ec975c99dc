-- name: count_waiting
-- Counts the tasks that wait in each namespace: those that are due, the retries and the timers
-- ahead, those behind a task of their own process, and those held until it comes back; and with constraints, those that wait for their
-- instant, their order, their gates, or have passed them; up to a limit of each. For how long: since the
-- oldest was due; since the process broke; since the first attempt of the oldest of the hundred retries with most attempts;
-- since the request behind with the lowest id was admitted, or a timer there was due. With
-- constraints: since the task began to wait for its cause. And places of gates that are held, and gates
-- that are full with a queue. And jobs that run, with their nodes, up to jobs_max in all namespaces; and
-- schedules, up to the limit: those that have a next instant, that are paused, and that were due late_after ago, which
-- is not late in a paused namespace.
-- And processes by status, all of them.
--
-- Each count ends with the limit, and reads what it counts by an index; running is read once, for all
-- namespaces: it is as short as there are workers. Of tasks a hundred rows are read for the retries,
-- and one for all that is behind. OFFSET 0 keeps a look-up by key from becoming a join. A namespace
-- where nothing has constraints pays for two look-ups, which find nothing.
-- An age is null where nothing waits, and otherwise at least 0: greatest ignores null.
-- Where more than the limit are available, what is due without constraints may be more than is reported.
-- Locks: none.
WITH held AS MATERIALIZED (
    SELECT r.namespace, array_agg(r.slot) AS slots, array_agg(r.process_id) AS process_ids
    FROM progressor.running r
    GROUP BY r.namespace
),
jobs AS MATERIALIZED (
    SELECT j.namespace, count(*) AS job_count, sum(j.waiting) AS waiting_count,
        sum(j.ready) AS ready_count, sum(j.running) AS running_count,
        sum(j.failed) AS failed_count
    FROM (
        SELECT j.namespace, j.waiting, j.ready, j.running, j.failed
        FROM progressor.jobs j
        WHERE j.state = 'running'
        ORDER BY j.slot, j.namespace, j.process_id
        LIMIT %(jobs_max)s
    ) j
    GROUP BY j.namespace
),
counts AS MATERIALIZED (
    SELECT c.namespace,
        sum(c.process_count) FILTER (WHERE c.status = 'init')::bigint AS init_count,
        sum(c.process_count) FILTER (WHERE c.status = 'running')::bigint AS running_count,
        sum(c.process_count) FILTER (WHERE c.status = 'error')::bigint AS error_count,
        sum(c.process_count) FILTER (WHERE c.status = 'finished')::bigint AS finished_count
    FROM (
        SELECT c.namespace, c.status_after AS status, c.process_count
        FROM progressor.process_counts c
        UNION ALL
        SELECT c.namespace, c.status_before, -c.process_count
        FROM progressor.process_counts c
    ) c
    GROUP BY c.namespace
)
SELECT n.namespace,
    due.task_count AS due_count,
    CASE WHEN due.task_count > 0 THEN greatest(clock.now - due.oldest_at, '0') END AS due_age,
    least(
        ahead.task_count - retries.unconstrained_count + gated.timer_count, %(limit)s
    ) AS timer_count,
    least(retries.task_count, %(limit)s) AS retry_count,
    CASE WHEN retries.task_count > 0 THEN greatest(clock.now - retries.tried_since, '0') END AS retry_age,
    least(behind.task_count + gated.behind_count, %(limit)s) AS behind_count,
    CASE WHEN behind.task_count + gated.behind_count > 0 THEN
        greatest(clock.now - least(behind.oldest_at, gated.behind_since), '0')
    END AS behind_age,
    failed.task_count AS process_failed_count,
    CASE WHEN failed.task_count > 0 THEN
        greatest(clock.now - failed.oldest_at, '0')
    END AS process_failed_age,
    gated.run_at_count,
    gated.order_count,
    CASE WHEN gated.order_count > 0 THEN greatest(clock.now - gated.order_since, '0') END AS order_age,
    gated.gate_count,
    CASE WHEN gated.gate_count > 0 THEN greatest(clock.now - gated.gate_since, '0') END AS gate_age,
    available.task_count AS available_count,
    CASE WHEN available.task_count > 0 THEN greatest(clock.now - available.oldest_at, '0') END AS available_age,
    places.held_count,
    places.full_count AS full_gate_count,
    coalesce(jobs.job_count, 0) AS job_count,
    coalesce(jobs.waiting_count, 0) AS waiting_node_count,
    coalesce(jobs.ready_count, 0) AS ready_node_count,
    coalesce(jobs.running_count, 0) AS running_node_count,
    coalesce(jobs.failed_count, 0) AS failed_node_count,
    schedules.active_count AS schedule_count,
    schedules.paused_count AS paused_schedule_count,
    schedules.late_count AS late_schedule_count,
    CASE WHEN own.paused_at IS NOT NULL THEN greatest(clock.now - own.paused_at, '0') END AS paused_age,
    coalesce(counts.init_count, 0) AS init_process_count,
    coalesce(counts.running_count, 0) AS running_process_count,
    coalesce(counts.error_count, 0) AS error_process_count,
    coalesce(counts.finished_count, 0) AS finished_process_count,
    NOT (SELECT s.is_exact FROM progressor.process_count_state s) AS process_count_is_estimate
FROM (SELECT coalesce(%(now)s, clock_timestamp()) AS now) clock
CROSS JOIN unnest(%(namespace)s::text[]) AS n (namespace)
LEFT JOIN progressor.namespaces own ON own.name = n.namespace
LEFT JOIN held ON held.namespace = n.namespace
LEFT JOIN jobs ON jobs.namespace = n.namespace
LEFT JOIN counts ON counts.namespace = n.namespace
CROSS JOIN LATERAL (
    SELECT (
        SELECT g.namespace
        FROM progressor.gated g
        WHERE g.namespace = n.namespace
        ORDER BY g.namespace, g.cause
        LIMIT 1
    ) IS NOT NULL AS has_gated
    OFFSET 0
) has
CROSS JOIN LATERAL (
    SELECT count(*) AS task_count, min(h.held_at) AS oldest_at
    FROM (
        SELECT h.held_at
        FROM progressor.held h
        WHERE h.namespace = n.namespace
        ORDER BY h.namespace, h.held_at
        LIMIT %(limit)s
    ) h
) failed
CROSS JOIN LATERAL (
    SELECT coalesce(max(w.task_count) FILTER (WHERE c.cause = 'run_at'), 0) AS run_at_count,
        coalesce(max(w.task_count) FILTER (WHERE c.cause = 'timer'), 0) AS timer_count,
        coalesce(max(w.task_count) FILTER (WHERE c.cause = 'order'), 0) AS order_count,
        max(w.oldest_at) FILTER (WHERE c.cause = 'order') AS order_since,
        coalesce(max(w.task_count) FILTER (WHERE c.cause = 'gate'), 0) AS gate_count,
        max(w.oldest_at) FILTER (WHERE c.cause = 'gate') AS gate_since,
        coalesce(max(w.task_count) FILTER (WHERE c.cause = 'behind_task'), 0) AS behind_count,
        max(w.oldest_at) FILTER (WHERE c.cause = 'behind_task') AS behind_since
    FROM unnest(ARRAY['run_at', 'timer', 'order', 'behind_task', 'gate']) AS c (cause)
    CROSS JOIN LATERAL (
        SELECT count(*) AS task_count, min(g.state_since) AS oldest_at
        FROM (
            SELECT g.state_since
            FROM progressor.gated g
            WHERE g.namespace = n.namespace AND g.cause = c.cause
            ORDER BY g.namespace, g.cause, g.state_since
            LIMIT %(limit)s
        ) g
    ) w
    WHERE has.has_gated
) gated
CROSS JOIN LATERAL (
    -- Of those that have passed their gates some run: as many as there are workers, at the most.
    SELECT count(*) AS task_count, min(a.state_since) AS oldest_at
    FROM (
        SELECT g.state_since
        FROM (
            SELECT g.slot, g.process_id, g.task_id, g.state_since
            FROM progressor.gated g
            WHERE has.has_gated AND g.namespace = n.namespace AND g.cause = 'available'
            ORDER BY g.namespace, g.cause, g.state_since
            LIMIT %(limit)s + coalesce(cardinality(held.slots), 0)
        ) g
        CROSS JOIN LATERAL (
            SELECT
            FROM progressor.schedule s
            WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                    = (g.slot, n.namespace, g.process_id, g.task_id)
                AND s.status <> 'blocked'
                AND s.due_at <= clock.now
            OFFSET 0
        ) s
        LIMIT %(limit)s
    ) a
) available
CROSS JOIN LATERAL (
    SELECT count(*) AS task_count, min(d.due_at) AS oldest_at
    FROM (
        SELECT d.due_at
        FROM (
            SELECT s.due_at
            FROM progressor.schedule s
            WHERE available.task_count = 0
                AND s.namespace = n.namespace
                AND s.status = 'waiting'
                AND s.due_at <= clock.now
            ORDER BY s.namespace, s.due_at
            LIMIT %(limit)s
        ) d
        UNION ALL
        -- Those that are counted as available stand among them.
        SELECT d.due_at
        FROM (
            SELECT d.due_at
            FROM (
                SELECT s.slot, s.process_id, s.task_id, s.due_at
                FROM progressor.schedule s
                WHERE available.task_count > 0
                    AND s.namespace = n.namespace
                    AND s.status = 'waiting'
                    AND s.due_at <= clock.now
                ORDER BY s.namespace, s.due_at
                LIMIT %(limit)s + available.task_count
            ) d
            WHERE (
                SELECT g.task_id
                FROM progressor.gated g
                WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                    = (d.slot, n.namespace, d.process_id, d.task_id)
            ) IS NULL
            LIMIT %(limit)s
        ) d
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
    ),
    g AS MATERIALIZED (
        SELECT g.slot, g.process_id, g.task_id, g.attempt
        FROM progressor.gated g
        WHERE has.has_gated AND g.namespace = n.namespace AND g.cause = 'retry'
        ORDER BY g.namespace, g.cause, g.state_since
        LIMIT %(limit)s
    )
    SELECT (SELECT count(*) FROM a) AS unconstrained_count,
        (SELECT count(*) FROM a) + (SELECT count(*) FROM g) AS task_count,
        min(t.first_started_at) AS tried_since
    FROM (
        SELECT *
        FROM a
        UNION ALL
        SELECT *
        FROM g
        ORDER BY attempt DESC, task_id
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
        LIMIT %(limit)s + retries.unconstrained_count
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
                AND s.task_type NOT IN ('timeout', 'remove')
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
        UNION ALL
        -- Behind the init task of their process, which has constraints: so it stands in no queue.
        SELECT w.*
        FROM (
            SELECT g.slot, g.process_id
            FROM progressor.gated g
            WHERE has.has_gated
                AND g.namespace = n.namespace
                AND g.task_type = 'init'
                AND g.state <> 'available'
            ORDER BY g.namespace, g.state_since
            LIMIT %(limit)s
        ) i
        CROSS JOIN LATERAL (
            SELECT s.slot, s.process_id, s.task_id, s.task_type, s.due_at
            FROM progressor.schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (i.slot, n.namespace, i.process_id)
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
CROSS JOIN LATERAL (
    WITH RECURSIVE gate AS (
        (
            SELECT l.waits_on
            FROM progressor.gate_queues l
            WHERE gated.gate_count > 0 AND l.namespace = n.namespace AND l.waits_on IS NOT NULL
            ORDER BY l.namespace, l.waits_on
            LIMIT 1
        )
        UNION ALL
        -- From one gate to the next, whatever many queues wait for each.
        SELECT (
            SELECT l.waits_on
            FROM progressor.gate_queues l
            WHERE l.namespace = n.namespace AND l.waits_on > g.waits_on
            ORDER BY l.namespace, l.waits_on
            LIMIT 1
        )
        FROM gate g
        WHERE g.waits_on IS NOT NULL
    )
    SELECT (
        SELECT count(*)
        FROM (
            SELECT
            FROM progressor.gate_holders h
            WHERE h.namespace = n.namespace
            ORDER BY h.namespace, h.gate, h.held_at
            LIMIT %(limit)s
        ) h
    ) AS held_count, (
        SELECT count(g.waits_on)
        FROM (
            SELECT g.waits_on
            FROM gate g
            LIMIT %(limit)s
        ) g
    ) AS full_count
) places
CROSS JOIN LATERAL (
    SELECT count(s.next_at) AS active_count, count(*) FILTER (WHERE s.paused) AS paused_count,
        count(*) FILTER (
            WHERE s.next_at < clock.now - %(late_after)s AND own.paused_at IS NULL
        ) AS late_count
    FROM (
        SELECT s.paused, s.next_at
        FROM progressor.schedules s
        WHERE s.namespace = n.namespace
        ORDER BY s.namespace, s.schedule_id
        LIMIT %(limit)s
    ) s
) schedules
