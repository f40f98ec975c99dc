-- The invariants of jobs, in the form of processes.sql. All that is decided about a job is decided under the lock of
-- its leader's row in processes (priv/README.md), in the transaction that settles the follower or the
-- leader, so these hold at any moment; but for the last two, which are about what maintain_job does later.
--
-- Those that are not deep start from the jobs that run, by jobs_running, and read their nodes alone.
-- "Its follower" is the process of a node's key that names this leader and this node: another may have
-- taken the key since it was removed.

-- name: job_counters_match_their_nodes
-- says: a job that runs counts its nodes by their states as they are
-- A transaction that changes the state of a node also changes the counts of its job.
SELECT j.namespace, j.process_id,
    concat('the job counts, of nodes: ', j.node_count, ', ', j.waiting, ' waiting, ', j.ready, ' ready, ',
        j.running, ' running (', j.beginning, ' beginning), ', j.failed, ' failed, ', j.skipped,
        ' skipped, ', j.cancelled, ' cancelled; it has ', c.nodes, ': ', c.waiting, ', ', c.ready, ', ',
        c.running, ' (', c.beginning, '), ', c.failed, ', ', c.skipped, ', ', c.cancelled) AS detail
FROM progressor.jobs j
CROSS JOIN LATERAL (
    SELECT count(*) AS nodes,
        count(*) FILTER (WHERE n.state = 'waiting') AS waiting,
        count(*) FILTER (WHERE n.state = 'ready') AS ready,
        count(*) FILTER (WHERE n.state = 'running') AS running,
        count(*) FILTER (WHERE n.state = 'running' AND NOT n.begun) AS beginning,
        count(*) FILTER (WHERE n.state = 'failed') AS failed,
        count(*) FILTER (WHERE n.state = 'skipped') AS skipped,
        count(*) FILTER (WHERE n.state = 'cancelled') AS cancelled
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (j.slot, j.namespace, j.process_id)
) c
WHERE j.state = 'running'
    AND (j.node_count, j.waiting, j.ready, j.running, j.beginning, j.failed, j.skipped, j.cancelled)
        IS DISTINCT FROM
        (c.nodes, c.waiting, c.ready, c.running, c.beginning, c.failed, c.skipped, c.cancelled)

-- name: nodes_count_their_predecessors
-- says: a node counts the predecessors that are not done, and waits while there are any
-- The settlement that ends a node as done counts down its successors, and makes ready those that have no
-- predecessors left to wait for; until then they stay waiting. A node that is done stays done.
SELECT n.namespace, n.process_id,
    concat('node ', n.ordinal, ' (', n.name, ') is ', n.state, ' and counts ', n.waits_for,
        ' predecessors that are not done; of ', cardinality(n.predecessors), ' it has ', w.undone,
        ' such') AS detail
FROM progressor.jobs j
JOIN progressor.job_nodes n USING (slot, namespace, process_id)
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE s.state IS DISTINCT FROM 'done') AS undone
    FROM unnest(n.predecessors) AS p (ordinal)
    LEFT JOIN progressor.job_nodes s
        ON (s.slot, s.namespace, s.process_id, s.ordinal)
            = (n.slot, n.namespace, n.process_id, p.ordinal)
) w
WHERE j.state = 'running'
    AND n.state IN ('waiting', 'ready', 'running', 'done')
    AND CASE WHEN n.state = 'waiting' THEN w.undone = 0 OR w.undone <> n.waits_for
        ELSE w.undone > 0 END

-- name: nodes_are_skipped_after_a_failure
-- says: a node is skipped exactly if one that it depends on has failed, which it names
-- The settlement that breaks a follower skips all that depends on it, directly or not; so a node of a job
-- that runs is skipped exactly where one of its predecessors has failed or is skipped itself, and names
-- what this one names. What was cancelled before its job was brought back by a repair counts as failed.
SELECT n.namespace, n.process_id,
    concat('node ', n.ordinal, ' (', n.name, ') is ', n.state,
        CASE
            WHEN n.state = 'skipped' THEN concat(' because of ', n.skipped_because_of, ', which is ',
                coalesce(c.state::text, 'missing'), ', and by its predecessors because of ',
                coalesce(b.causes::text, 'nobody'))
            ELSE concat(', and before it has failed ', coalesce(b.causes::text, 'nobody'))
        END) AS detail
FROM progressor.jobs j
JOIN progressor.job_nodes n USING (slot, namespace, process_id)
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT coalesce(s.skipped_because_of, s.ordinal)) AS causes
    FROM unnest(n.predecessors) AS p (ordinal)
    JOIN progressor.job_nodes s
        ON (s.slot, s.namespace, s.process_id, s.ordinal)
            = (n.slot, n.namespace, n.process_id, p.ordinal)
        AND s.state IN ('failed', 'skipped', 'cancelled')
) b
LEFT JOIN progressor.job_nodes c
    ON (c.slot, c.namespace, c.process_id, c.ordinal)
        = (n.slot, n.namespace, n.process_id, n.skipped_because_of)
WHERE j.state = 'running'
    AND n.state <> 'cancelled'
    AND CASE n.state
        WHEN 'skipped' THEN
            (c.state IN ('failed', 'cancelled') AND n.skipped_because_of = ANY (b.causes)) IS NOT TRUE
        ELSE b.causes IS NOT NULL
    END

-- name: nodes_match_their_followers
-- says: a node runs while its follower does, and has ended as that has
-- The settlement that ends a follower ends its node, the one that starts it says running, and what reopens
-- it reopens its node; removing it ends its node too. A node may fail without a follower, with an error,
-- and run with one in error whose timer is run again. One whose follower leads a job that was brought back
-- from below is reopened when that is done, and failed then where that has failed as a whole.
SELECT n.namespace, n.process_id,
    concat('node ', n.ordinal, ' (', n.name, ') is ', n.state, ', and its follower ', n.follower_namespace,
        '/', n.follower_id, ' is ', coalesce(f.status::text, 'missing')) AS detail
FROM progressor.jobs j
JOIN progressor.job_nodes n USING (slot, namespace, process_id)
LEFT JOIN progressor.processes f
    ON (f.slot, f.namespace, f.process_id)
        = (n.follower_slot, n.follower_namespace, n.follower_id)
    AND (f.leader_slot, f.leader_namespace, f.leader_id, f.node)
        = (n.slot, n.namespace, n.process_id, n.ordinal)
    -- Else it is of an earlier job of this leader's name.
    AND n.started_at IS NOT NULL
LEFT JOIN progressor.jobs u
    ON (u.slot, u.namespace, u.process_id)
        = (n.follower_slot, n.follower_namespace, n.follower_id)
    AND ((n.state IN ('failed', 'cancelled') AND f.status = 'running')
        OR (n.state = 'running' AND f.status = 'error'))
LEFT JOIN LATERAL (
    SELECT s.task_id
    FROM progressor.schedule s
    WHERE (s.slot, s.namespace, s.process_id)
        = (n.follower_slot, n.follower_namespace, n.follower_id)
    UNION ALL
    SELECT r.task_id
    FROM progressor.running r
    WHERE (r.slot, r.namespace, r.process_id)
        = (n.follower_slot, n.follower_namespace, n.follower_id)
    UNION ALL
    SELECT g.task_id
    FROM progressor.gated g
    WHERE (g.slot, g.namespace, g.process_id)
        = (n.follower_slot, n.follower_namespace, n.follower_id)
    LIMIT 1
) w ON n.state = 'running' AND f.status = 'error'
WHERE j.state = 'running'
    AND u.upkeep_due_at IS NULL
    AND CASE n.state
        WHEN 'running' THEN
            (f.status IN ('init', 'running') OR w.task_id IS NOT NULL) IS NOT TRUE
        -- One that was terminated is finished, but not done.
        WHEN 'done' THEN f.status <> 'finished' OR f.end_reason IS NOT NULL
        WHEN 'failed' THEN
            coalesce(f.status <> 'error' AND f.end_reason IS NULL, n.error_reason IS NULL)
        WHEN 'cancelled' THEN f.status <> 'error' AND f.end_reason IS NULL
        -- One with constraints that a retry begins again waits for maintain_job.
        WHEN 'ready' THEN f.status IS NOT NULL AND NOT (n.gated AND f.status = 'error')
        ELSE f.status IS NOT NULL
    END

-- name: ready_nodes_wait_for_room
-- says: a node that is ready is started, as long as there is room for it
-- The settlement that makes a node ready starts it, if fewer than a window (domain/jobs/job.py) are beginning;
-- the one that makes room starts others. What has constraints is left to maintain_job, and noted as that.
SELECT j.namespace, j.process_id,
    concat('nodes: ', j.ready, ' ready, and ', j.beginning, ' of 512 beginning') AS detail
FROM progressor.jobs j
WHERE j.state = 'running'
    AND (j.beginning > 512 OR (j.ready > 0 AND j.beginning < 512 AND j.upkeep_due_at IS NULL))

-- name: jobs_are_joined_when_all_nodes_have_ended
-- says: the leader of a job has a join exactly once no node is unfinished
-- The settlement that ends the last node gives its leader a join; what adds nodes, or begins one again,
-- takes it back. The engine decides then; a processor may take its time, and is asked again.
SELECT j.namespace, j.process_id,
    CASE
        WHEN j.join_task_id IS NULL THEN 'no node is unfinished, and the leader has no join'
        ELSE concat('join ', j.join_task_id, ' is ',
            CASE
                WHEN t.status IS NULL THEN 'missing'
                ELSE concat('a ', t.task_type, ', ', t.status)
            END,
            ', and the job runs, with unfinished nodes: ', j.waiting + j.ready + j.running)
    END AS detail
FROM progressor.jobs j
LEFT JOIN progressor.processes l USING (slot, namespace, process_id)
LEFT JOIN progressor.tasks t
    ON (t.slot, t.namespace, t.process_id, t.task_id)
        = (j.slot, j.namespace, j.process_id, j.join_task_id)
WHERE j.state = 'running'
    AND CASE
        WHEN j.join_task_id IS NULL THEN j.waiting + j.ready + j.running = 0
        WHEN j.waiting + j.ready + j.running > 0 THEN t.status IN ('waiting', 'running')
        WHEN l.led_by = 'engine' THEN (t.task_type = 'join' AND t.status IN ('waiting', 'running'))
            IS NOT TRUE
        ELSE t.task_type <> 'join'
    END

-- name: jobs_are_joined_once
-- says: a join that waits or runs is that of its job, which runs
-- A join is of a job that runs, and the one that it names.
SELECT w.namespace, w.process_id,
    concat('join ', w.task_id, ' is ', w.place, ', and ',
        CASE
            WHEN j.state IS NULL THEN 'there is no job'
            ELSE concat('the job, ', j.state, ', knows of ', coalesce(j.join_task_id::text, 'none'))
        END) AS detail
FROM (
    SELECT slot, namespace, process_id, task_id, 'leased' AS place
    FROM progressor.running
    WHERE task_type = 'join'
    UNION ALL
    SELECT slot, namespace, process_id, task_id, 'scheduled'
    FROM progressor.schedule
    WHERE task_type = 'join'
) w
LEFT JOIN progressor.jobs j USING (slot, namespace, process_id)
WHERE j.state IS DISTINCT FROM 'running' OR j.join_task_id IS DISTINCT FROM w.task_id

-- name: jobs_run_as_long_as_their_leaders
-- says: a job that runs has a leader that has not ended
-- The settlement that ends a leader ends its job, and what brings it back brings its job back.
SELECT j.namespace, j.process_id,
    concat('the job runs, and its leader, led by ', coalesce(p.led_by, 'nobody'), ', is ',
        coalesce(p.status::text, 'missing')) AS detail
FROM progressor.jobs j
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE j.state = 'running' AND (p.status IN ('init', 'running') AND p.led_by IS NOT NULL) IS NOT TRUE

-- name: ended_jobs_match_their_leaders
-- says: a job has ended as its leader has, and every leader has a job
-- deep
-- The other direction of jobs_run_as_long_as_their_leaders, and what led_by says.
SELECT p.namespace, p.process_id,
    concat('the leader is ', p.status, ', and its job ', coalesce(j.state::text, 'missing')) AS detail
FROM progressor.processes p
LEFT JOIN progressor.jobs j USING (slot, namespace, process_id)
WHERE p.led_by IS NOT NULL
    AND CASE
        WHEN j.state IS NULL THEN p.led_by = 'processor' OR p.status = 'running'
        WHEN j.state = 'running' THEN false
        WHEN j.state = 'failed' THEN p.status <> 'error'
        ELSE p.status <> 'finished'
    END

-- name: job_rows_have_a_leader
-- says: every job belongs to a leader, and every node to a job
-- deep
-- Job and nodes go with their leader, and never without it.
SELECT r.namespace, r.process_id, concat(r.what, ' exists without ', r.lacks) AS detail
FROM (
    SELECT j.namespace, j.process_id, 'a job' AS what, 'its leader' AS lacks
    FROM progressor.jobs j
    LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
    WHERE p.led_by IS NULL
    UNION ALL
    SELECT n.namespace, n.process_id, concat('node ', n.ordinal), 'its job'
    FROM progressor.job_nodes n
    LEFT JOIN progressor.jobs j USING (slot, namespace, process_id)
    WHERE j.state IS NULL
) r

-- name: ended_jobs_have_no_open_nodes
-- says: a job that has ended has nothing left to begin, and counts its nodes as they are
-- deep
-- The transaction that ends a job ends what has not begun. What runs ends its step, or is stopped
-- by maintain_job, which is noted: with this job, or with that which the follower leads, if a node below took
-- back the join that it had in hand.
SELECT j.namespace, j.process_id,
    concat('the job, ', j.state, ', counts, of nodes: ', j.node_count, ', ', j.waiting, ' waiting, ', j.ready,
        ' ready, ', j.running, ' running, ', j.failed, ' failed, ', j.skipped, ' skipped, ', j.cancelled,
        ' cancelled; it has ', c.nodes, ', ', c.waiting, ', ', c.ready, ', ', c.running, ', ', c.failed,
        ', ', c.skipped, ', ', c.cancelled, '; of those that run, without a step: ', c.idle)
        AS detail
FROM progressor.jobs j
CROSS JOIN LATERAL (
    SELECT count(*) AS nodes,
        count(*) FILTER (WHERE n.state = 'waiting') AS waiting,
        count(*) FILTER (WHERE n.state = 'ready') AS ready,
        count(*) FILTER (WHERE n.state = 'running') AS running,
        count(*) FILTER (
            WHERE n.state = 'running' AND r.task_id IS NULL AND u.upkeep_due_at IS NULL) AS idle,
        count(*) FILTER (WHERE n.state = 'failed') AS failed,
        count(*) FILTER (WHERE n.state = 'skipped') AS skipped,
        count(*) FILTER (WHERE n.state = 'cancelled') AS cancelled
    FROM progressor.job_nodes n
    LEFT JOIN progressor.running r
        ON (r.slot, r.namespace, r.process_id)
            = (n.follower_slot, n.follower_namespace, n.follower_id)
    LEFT JOIN progressor.jobs u
        ON (u.slot, u.namespace, u.process_id)
            = (n.follower_slot, n.follower_namespace, n.follower_id)
    WHERE (n.slot, n.namespace, n.process_id) = (j.slot, j.namespace, j.process_id)
) c
WHERE j.state <> 'running'
    AND (j.waiting + j.ready > 0
        OR (j.node_count, j.waiting, j.ready, j.running, j.failed, j.skipped, j.cancelled)
            IS DISTINCT FROM
            (c.nodes, c.waiting, c.ready, c.running, c.failed, c.skipped, c.cancelled)
        OR (c.idle > 0 AND j.upkeep_due_at IS NULL))

-- name: node_ordinals_have_no_gaps
-- says: the nodes of a job are numbered from 1 without gaps, and no two have one name
-- deep
-- Nodes get the next ordinals when they are added, and are never taken away alone.
SELECT j.namespace, j.process_id,
    concat('nodes: ', j.node_count, '; the first is ', coalesce(c.first::text, 'none'), ', the last ',
        coalesce(c.last::text, 'none'), '; names: ', c.names, ', of nodes: ', c.nodes) AS detail
FROM progressor.jobs j
CROSS JOIN LATERAL (
    SELECT min(n.ordinal) AS first, max(n.ordinal) AS last, count(*) AS nodes,
        count(DISTINCT n.name) AS names
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (j.slot, j.namespace, j.process_id)
) c
WHERE (c.first, c.last, c.names, c.nodes)
    IS DISTINCT FROM (1, j.node_count, j.node_count::bigint, j.node_count::bigint)

-- name: edges_are_known_at_both_ends
-- says: an edge of a job is known to both its nodes, once
-- deep
-- Who adds a node enters its edges at both ends, each once.
SELECT e.namespace, e.process_id,
    concat('the edge from node ', e.source, ' to ', e.target, ' is known ', e.before,
        ' times to its source, ', e.behind, ' to its target') AS detail
FROM (
    SELECT u.slot, u.namespace, u.process_id, u.source, u.target,
        count(*) FILTER (WHERE u.is_source) AS before, count(*) FILTER (WHERE NOT u.is_source) AS behind
    FROM (
        SELECT n.slot, n.namespace, n.process_id, n.ordinal AS source, s.ordinal AS target,
            true AS is_source
        FROM progressor.job_nodes n
        CROSS JOIN LATERAL unnest(n.successors) AS s (ordinal)
        UNION ALL
        SELECT n.slot, n.namespace, n.process_id, p.ordinal, n.ordinal, false
        FROM progressor.job_nodes n
        CROSS JOIN LATERAL unnest(n.predecessors) AS p (ordinal)
    ) u
    GROUP BY u.slot, u.namespace, u.process_id, u.source, u.target
) e
WHERE (e.before, e.behind) <> (1, 1) OR e.source = e.target

-- name: working_followers_have_running_nodes
-- says: each unfinished follower of a running job is one of its running nodes
-- deep
-- Each unfinished follower of a running job is one of its running nodes. A follower of a job that
-- was deleted or has ended is stopped when it ends its step; one that leads a job which one of its own
-- nodes revived is reported when that job's upkeep runs.
SELECT p.namespace, p.process_id,
    concat('the process is ', p.status, ', and follows node ', p.node, ' of ', p.leader_namespace, '/',
        p.leader_id, ', which is ', coalesce(n.state::text, 'missing')) AS detail
FROM progressor.processes p
JOIN progressor.jobs j
    ON (j.slot, j.namespace, j.process_id) = (p.leader_slot, p.leader_namespace, p.leader_id)
LEFT JOIN progressor.job_nodes n
    ON (n.slot, n.namespace, n.process_id, n.ordinal)
        = (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
    AND (n.follower_slot, n.follower_namespace, n.follower_id) = (p.slot, p.namespace, p.process_id)
LEFT JOIN progressor.orphans o
    ON (o.slot, o.namespace, o.process_id) = (p.slot, p.namespace, p.process_id)
LEFT JOIN progressor.jobs u
    ON (u.slot, u.namespace, u.process_id) = (p.slot, p.namespace, p.process_id)
WHERE p.leader_id IS NOT NULL
    AND p.status IN ('init', 'running')
    AND j.state = 'running'
    AND n.state IS DISTINCT FROM 'running'
    -- Else its leader led an earlier job, and was removed; those who run then are stopped one by one.
    AND p.created_at >= j.created_at
    AND o.process_id IS NULL
    AND (u.state = 'running' AND u.upkeep_due_at IS NOT NULL) IS NOT TRUE

-- name: job_upkeep_is_done_in_time
-- says: the upkeep of every job is done in time
-- lasting: job upkeep failed; retrying
-- The replica that leaves something to maintain_job carries it out at once, and the scan where that has died.
SELECT j.namespace, j.process_id,
    concat('the job, ', j.state, ', has needed upkeep since ', j.upkeep_due_at) AS detail
FROM progressor.jobs j
WHERE j.upkeep_due_at IS NOT NULL

-- name: job_deadlines_are_enforced
-- says: no job runs whose deadline has passed
-- lasting: job upkeep failed; retrying
-- The scan fails a job whose deadline has passed.
SELECT j.namespace, j.process_id, concat('the job runs, and its deadline was ', j.deadline_at) AS detail
FROM progressor.jobs j
WHERE j.state = 'running' AND j.deadline_at <= (SELECT now())
