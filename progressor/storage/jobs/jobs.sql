-- name: read_job
-- A job as of one instant, in the first row alone; with its nodes that have changed after a revision, by
-- their ordinals. Where none has, it looks at no node. With the args and results of those up to whom all
-- are no more than `bytes_max`. Locks: none.
SELECT n.bytes, CASE WHEN row_number() OVER (ORDER BY n.ordinal) = 1 THEN to_json(j) END AS job,
    p.led_by,
    n.ordinal, n.name, n.state, n.follower_slot, n.follower_namespace,
    n.follower_id AS follower_process_id,
    n.predecessors, n.skipped_because_of,
    CASE WHEN n.bytes <= %(bytes_max)s THEN n.args ELSE '' END AS args,
    CASE WHEN n.bytes <= %(bytes_max)s THEN n.result END AS result,
    n.error_code, n.error_reason, n.error_message, n.options ->> 'target' AS target, n.constraints,
    n.created_at, n.ready_at, n.started_at, n.ended_at, n.attempt, n.revision,
    coalesce(
        CASE WHEN n.state = 'running' THEN (
            SELECT r.replica_id
            FROM progressor.running r
            WHERE (r.slot, r.namespace, r.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id)
        ) END, n.replica_id) AS replica_id,
    coalesce(
        n.updated_at, greatest(n.created_at, n.ready_at, n.started_at, n.ended_at)
    ) AS updated_at
FROM progressor.jobs j
JOIN progressor.processes p USING (slot, namespace, process_id)
LEFT JOIN LATERAL (
    SELECT n.*, sum(octet_length(n.args) + coalesce(octet_length(n.result), 0))
        OVER (ORDER BY n.ordinal) AS bytes
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (j.slot, j.namespace, j.process_id)
        AND n.revision > %(after)s
        AND j.revision > %(after)s
    ORDER BY n.ordinal
) n ON true
WHERE (j.slot, j.namespace, j.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
ORDER BY n.ordinal;

-- name: read_counts
-- A job without its nodes. Locks: none.
SELECT to_json(j) AS job, p.led_by
FROM progressor.jobs j
JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE (j.slot, j.namespace, j.process_id) = (%(slot)s, %(namespace)s, %(process_id)s);

-- name: known_nodes
-- The names of the nodes of a job after an ordinal, or of some of them. Locks: none.
SELECT n.name, n.ordinal
FROM progressor.job_nodes n
WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
    AND n.ordinal > %(after)s
    AND (%(ordinals)s::integer[] IS NULL OR n.ordinal = ANY (%(ordinals)s::integer[]));

-- name: list_jobs
-- Pages through the jobs of a namespace, the youngest first. Collated as the index is. Locks: none.
SELECT to_json(j) AS job, p.led_by
FROM (
    SELECT j.*
    FROM progressor.jobs j
    WHERE j.namespace = %(namespace)s COLLATE "POSIX"
        AND (%(states)s::progressor.job_state[] IS NULL
            OR j.state = ANY (%(states)s::progressor.job_state[]))
        AND (%(schedule_id)s::text IS NULL OR j.schedule_id = %(schedule_id)s)
        AND (%(before_at)s::timestamptz IS NULL
            OR (j.created_at, j.process_id) < (%(before_at)s, %(before_id)s::text))
    ORDER BY j.namespace COLLATE "POSIX", j.created_at DESC, j.process_id COLLATE "POSIX" DESC
    LIMIT %(limit)s
) j
CROSS JOIN LATERAL (
    SELECT p.led_by
    FROM progressor.processes p
    WHERE (p.slot, p.namespace, p.process_id) = (j.slot, j.namespace, j.process_id)
    OFFSET 0
) p
ORDER BY j.created_at DESC, j.process_id DESC;

-- name: read_outcomes
-- How the nodes of a job have ended, or the predecessors of a node, by their ordinals; their results only
-- where all of it is no more than `bytes_max`. Locks: none.
SELECT n.bytes, n.ordinal, n.name, n.state,
    CASE WHEN n.bytes <= %(bytes_max)s THEN n.result END AS result,
    n.error_code, n.error_reason, n.error_message, n.skipped_because_of
FROM (
    SELECT n.*, sum(octet_length(n.name) + coalesce(octet_length(n.result), 0)
        + coalesce(octet_length(n.error_message), 0)) OVER () AS bytes
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
        AND (%(successor)s::integer IS NULL OR n.ordinal = ANY (ARRAY(
            SELECT unnest(w.predecessors)
            FROM progressor.job_nodes w
            WHERE (w.slot, w.namespace, w.process_id, w.ordinal)
                = (%(slot)s, %(namespace)s, %(process_id)s, %(successor)s::integer)
        )))
) n
ORDER BY n.ordinal;

-- name: read_failures
-- How many nodes a job has, and how many of them are not done; and the first that have failed. Locks:
-- none.
SELECT j.node_count,
    j.waiting + j.ready + j.running + j.failed + j.skipped + j.cancelled AS missing_count,
    n.ordinal, n.name, n.state, n.error_code, n.error_reason, n.error_message
FROM progressor.jobs j
LEFT JOIN LATERAL (
    SELECT n.*
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (j.slot, j.namespace, j.process_id)
        AND n.state = 'failed' AND j.failed > 0
    ORDER BY n.ordinal
    LIMIT %(limit)s
) n ON true
WHERE (j.slot, j.namespace, j.process_id) = (%(slot)s, %(namespace)s, %(process_id)s)
ORDER BY n.ordinal;

-- name: find_upkeep_due
-- Jobs that have waited for maintain_job, the longest first. Locks: none.
SELECT j.slot, j.namespace, j.process_id
FROM progressor.jobs j
WHERE j.upkeep_due_at <= coalesce(%(now)s::timestamptz, now()) - %(age)s::interval
ORDER BY j.upkeep_due_at
LIMIT %(limit)s;

-- name: take_upkeep_round
-- Takes a round that is due, for `interval`; the replica that does it renews it. Locks: the round, SKIP LOCKED: its
-- holder is doing it.
UPDATE progressor.upkeep_rounds d
SET due_at = n.now + %(interval)s::interval, replica_id = %(replica_id)s, begun_at = n.now
FROM (
    SELECT f.kind, n.now
    FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now) n
    JOIN progressor.upkeep_rounds f ON f.due_at <= n.now
    WHERE f.kind = %(kind)s
    FOR UPDATE OF f SKIP LOCKED
) n
WHERE d.kind = n.kind
RETURNING d.begun_at;

-- name: count_running
-- Jobs that run, of each namespace, and their nodes but for those that are done or cancelled. Locks:
-- none.
SELECT j.namespace, count(*)::integer AS jobs, sum(j.waiting)::integer AS waiting,
    sum(j.ready)::integer AS ready, sum(j.running)::integer AS running,
    sum(j.failed)::integer AS failed, sum(j.skipped)::integer AS skipped
FROM (
    SELECT j.namespace, j.waiting, j.ready, j.running, j.failed, j.skipped
    FROM progressor.jobs j
    WHERE j.state = 'running'
    LIMIT %(counted_max)s
) j
GROUP BY j.namespace;
