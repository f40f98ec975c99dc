-- The invariants of schedules, in the form of processes.sql. All that is decided about a schedule and its runs is
-- decided under the lock of the schedule's row, in one transaction with what it starts; so these hold at
-- any moment, but for the first two, which are about what replicas do in time.

-- name: schedules_run_on_time
-- says: no schedule has been due for 10 s
-- lasting: schedules not run
-- Each replica looks at least each second for what is due; a claim on it keeps the others away for as long
-- as a lease.
SELECT s.namespace, s.schedule_id AS process_id,
    concat('the run of ', s.next_instant, ' has been due since ', s.next_at, ' and has not run')
        AS detail
FROM progressor.schedules s
WHERE s.next_at <= (SELECT now()) - interval '10 seconds'

-- name: queued_runs_are_started
-- says: a run is queued only while another one of its schedule is at work
-- lasting: scan failed
-- A run that waits for another starts within a scan once that has ended.
SELECT q.namespace, q.schedule_id AS process_id,
    concat('the run of ', q.instant, ' is queued, and nothing of its schedule is at work') AS detail
FROM progressor.schedule_runs q
WHERE q.state = 'queued'
    AND NOT EXISTS (
        SELECT
        FROM progressor.schedule_runs w
        WHERE (w.slot, w.namespace, w.schedule_id) = (q.slot, q.namespace, q.schedule_id)
            AND w.state = 'running'
    )

-- name: schedule_runs_precede_the_next_instant
-- says: the runs of a schedule come before its next one
-- deep
-- A run and the step to the next instant are one transaction: no instant with a run is still ahead.
SELECT s.namespace, s.schedule_id AS process_id,
    concat('the run of ', f.instant, ' has happened, and the next one is that of ', s.next_instant)
        AS detail
FROM progressor.schedules s
CROSS JOIN LATERAL (
    SELECT f.instant
    FROM progressor.schedule_runs f
    WHERE (f.slot, f.namespace, f.schedule_id) = (s.slot, s.namespace, s.schedule_id)
        AND f.instant >= s.next_instant AND f.cause = 'time' AND f.state <> 'missed'
    ORDER BY f.instant
    LIMIT 1
) f
WHERE s.next_instant IS NOT NULL

-- name: schedule_runs_start_one_task_each
-- says: what a run of a schedule starts is started by nothing else
-- deep
-- What a run starts has a task of its own.
SELECT f.namespace, min(f.schedule_id) AS process_id,
    concat('task ', f.task_id, ' of process ', f.process_id, ' was started by ', count(*), ' runs')
        AS detail
FROM progressor.schedule_runs f
WHERE f.task_id IS NOT NULL
GROUP BY f.namespace, f.process_slot, f.process_id, f.task_id
HAVING count(*) > 1

-- name: schedule_runs_name_their_own_tasks
-- says: the task that a run names bears the schedule's id in its key
-- deep
-- The key of the task that a run has started is made of the schedule and the instant. It is free again where the task
-- was cancelled before its step began.
SELECT f.namespace, f.schedule_id AS process_id,
    concat('the run of ', f.instant, ' names task ', f.task_id, ', which is ', t.task_type,
        ' with the key ', coalesce(t.idempotency_key, 'of none')) AS detail
FROM progressor.schedule_runs f
JOIN progressor.tasks t
    ON (t.slot, t.namespace, t.process_id, t.task_id)
        = (f.process_slot, f.namespace, f.process_id, f.task_id)
WHERE t.task_type <> f.task_type
    OR (NOT starts_with(coalesce(t.idempotency_key, ''), concat('schedule/', f.schedule_id, '/'))
        AND (t.status <> 'cancelled' OR t.idempotency_key IS NOT NULL))

-- name: schedule_runs_have_a_schedule
-- says: every run belongs to a schedule, which counts it
-- deep
-- The record of runs goes with the schedule, and counts no more than that.
SELECT f.namespace, f.schedule_id AS process_id,
    concat(f.count, ' runs have started something, of a schedule that ',
        coalesce(concat('counts ', s.started_count), 'does not exist')) AS detail
FROM (
    SELECT f.slot, f.namespace, f.schedule_id, count(f.task_id) AS count
    FROM progressor.schedule_runs f
    GROUP BY f.slot, f.namespace, f.schedule_id
) f
LEFT JOIN progressor.schedules s USING (slot, namespace, schedule_id)
WHERE s.schedule_id IS NULL OR f.count > s.started_count

-- name: schedules_have_a_namespace
-- says: every schedule belongs to a namespace
-- deep
-- A namespace takes its schedules with it.
SELECT s.namespace, s.schedule_id AS process_id, 'its namespace does not exist' AS detail
FROM progressor.schedules s
WHERE s.namespace NOT IN (SELECT n.name FROM progressor.namespaces n)
