-- The invariants of storage, as queries: each row that a statement returns violates its invariant, as
-- (namespace, process_id, detail). No statement here locks or writes.
--
-- Each is one statement, so it sees one snapshot. Every write takes the tables from one state in which all
-- invariants hold to another, in one transaction under the lock of the process. So an invariant holds at any
-- moment of a live system, whatever is in flight. The comments below say what writes both sides of each.
--
-- Those that are not deep start from running, schedule or a partial index, and look the rest up by its
-- key, row by row: they are asked with the planner settings of `run.BY_INDEX`. A look-up takes 3
-- to 17 us (100,000 timers of 200,000 processes, 2 cores, 2026-11-21), so a million timers some seconds.

-- name: leases_match_their_tasks
-- says: a leased task is running, with the same token, attempt and type
-- A lease is taken with its task by admission, claim_locked and settle_tasks, and given back by
-- settle_tasks and delete_processes: always both rows at once.
SELECT r.namespace, r.process_id,
    concat('task ', r.task_id, ' (', r.task_type, ', attempt ', r.attempt, ', token ', r.token,
        ') is leased, ',
        CASE
            WHEN t.status IS NULL THEN 'and has no record'
            ELSE concat('its record says ', t.task_type, ', ', t.status, ', attempt ',
                t.attempt_count, ', token ', coalesce(t.token::text, 'none'))
        END) AS detail
FROM progressor.running r
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
WHERE t.status IS DISTINCT FROM 'running'
    OR t.token IS DISTINCT FROM r.token
    OR t.attempt_count IS DISTINCT FROM r.attempt
    OR t.task_type IS DISTINCT FROM r.task_type

-- name: scheduled_tasks_match_their_records
-- says: a scheduled task is waiting, with the same type and attempt
-- A task enters the schedule with its record (admission, set_timer, put) or when its attempt ends, and
-- leaves it when it begins, is cancelled or deleted: both rows at once. tasks.status says waiting for
-- a blocked timer too.
SELECT s.namespace, s.process_id,
    concat('task ', s.task_id, ' (', s.task_type, ', ', s.attempt, ' attempts) is scheduled, ',
        CASE
            WHEN t.status IS NULL THEN 'and has no record'
            ELSE concat('its record says ', t.task_type, ', ', t.status, ', ', t.attempt_count,
                ' attempts')
        END) AS detail
FROM progressor.schedule s
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
WHERE t.status IS DISTINCT FROM 'waiting'
    OR t.task_type IS DISTINCT FROM s.task_type
    OR t.attempt_count IS DISTINCT FROM s.attempt

-- name: tasks_fit_their_process_status
-- says: tasks wait or run only on processes that exist and have not finished; in init, only the init task does
-- The settlement that finishes a process, and the removal that deletes it, take all that waits away in
-- the same transaction; admission looks at the status under the lock. While a process is in init,
-- what else waits has no due time, so that nothing but its init task is ever leased. What its constraints
-- keep is in gated alone.
SELECT w.namespace, w.process_id,
    concat(w.task_type, ' ', w.task_id, ' is ', w.place, ', and the process ',
        CASE
            WHEN p.status IS NULL THEN 'does not exist'
            WHEN w.task_type = 'init'
                THEN concat('is ', p.status, ' with init task ', p.init_task_id)
            ELSE concat('is ', p.status)
        END) AS detail
FROM (
    SELECT slot, namespace, process_id, task_id, task_type, 'leased' AS place
    FROM progressor.running
    UNION ALL
    SELECT slot, namespace, process_id, task_id, task_type, 'scheduled'
    FROM progressor.schedule
    UNION ALL
    SELECT slot, namespace, process_id, task_id, task_type, 'kept by its constraints'
    FROM progressor.gated
    WHERE state <> 'available'
) w
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE p.status IS NULL
    OR p.status = 'finished'
    OR (w.task_type = 'init'
        AND (p.status <> 'init' OR p.init_task_id <> w.task_id)
        AND p.corrupted_by IS DISTINCT FROM w.task_id)
    OR (w.place = 'leased' AND p.status = 'init' AND w.task_type <> 'init')

-- name: broken_processes_wait_for_repair
-- says: a broken process has nothing in its queue but repairs, and the task that broke it if that runs again
-- The settlement that breaks a process holds or cancels what waits on it. A repair is admitted while it is in
-- error; recover_process runs the task that broke it again. What has constraints is kept by them meanwhile. The
-- transaction that recovers the process also clears the error.
SELECT p.namespace, p.process_id,
    concat(w.task_type, ' ', w.task_id, ' is ', w.place, ' although the process is in error') AS detail
FROM progressor.processes p
CROSS JOIN LATERAL (
    SELECT s.task_id, s.task_type, 'scheduled' AS place
    FROM progressor.schedule s
    WHERE (s.slot, s.namespace, s.process_id) = (p.slot, p.namespace, p.process_id)
    UNION ALL
    SELECT r.task_id, r.task_type, 'leased'
    FROM progressor.running r
    WHERE (r.slot, r.namespace, r.process_id) = (p.slot, p.namespace, p.process_id)
    UNION ALL
    SELECT g.task_id, g.task_type, 'in a queue for gates'
    FROM progressor.gated g
    WHERE (g.slot, g.namespace, g.process_id) = (p.slot, p.namespace, p.process_id)
        AND g.state = 'gates'
    OFFSET 0
) w
WHERE p.detail IS NOT NULL
    AND w.task_type <> 'repair'
    AND w.task_id IS DISTINCT FROM p.corrupted_by

-- name: held_tasks_belong_to_broken_processes
-- says: a task is held exactly while its process is in error, and waits nowhere else
-- The settlement that breaks a process moves its waiting tasks from the schedule to held, the transaction that
-- recovers it moves them back.
SELECT h.namespace, h.process_id,
    concat(h.task_type, ' ', h.task_id, ' is held, and ',
        CASE
            WHEN p.status IS DISTINCT FROM 'error'
                THEN concat('its process is ', coalesce(p.status::text, 'gone'))
            WHEN s.task_id IS NOT NULL THEN 'is scheduled too'
            ELSE concat('its record says ', coalesce(t.status::text, 'nothing'))
        END) AS detail
FROM progressor.held h
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
WHERE p.status IS DISTINCT FROM 'error'
    OR s.task_id IS NOT NULL
    OR t.status IS DISTINCT FROM 'waiting'
    OR t.attempt_count <> h.attempt

-- name: memos_belong_to_tasks_that_can_run
-- says: a memo belongs to a task that has not ended, or that broke its process and can run again, and is marked so
-- store_memos writes a memo under the lease of its task, with both flags. Whatever ends the task, or brings its
-- process back, deletes it (forget_memos, settle_waits, delete_processes).
SELECT m.namespace, m.process_id,
    concat('task ', m.task_id, ' has memos, ',
        CASE
            WHEN t.status IS NULL THEN 'and has no record'
            WHEN t.finished_at IS NULL THEN 'and its record or its lease says that it has none'
            ELSE concat('and is ', t.status, ' on a process that is ', p.status)
        END) AS detail
FROM (SELECT DISTINCT slot, namespace, process_id, task_id FROM progressor.memos) m
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
LEFT JOIN progressor.running r USING (slot, namespace, process_id, task_id)
WHERE t.has_memos IS NOT TRUE
    OR (r.task_id IS NOT NULL AND r.has_memos IS NOT TRUE)
    OR (t.finished_at IS NOT NULL AND (
        p.status <> 'error' OR t.status = 'finished' OR t.task_type = 'repair'
        OR t.task_id <> p.corrupted_by))

-- name: replies_are_requested_of_what_has_not_ended
-- says: a reply is requested only of a task or a started process that has not ended, and the process is marked so
-- deliver_messages writes the request with the task. Whatever ends the task or the process answers and deletes it
-- (settle_replies), under the lock of the process.
SELECT q.namespace, q.process_id,
    concat('the ', q.kind, ' of task ', q.task_id, ' has to be answered, ',
        CASE
            WHEN t.status IS NULL THEN 'which has no record'
            WHEN p.has_reply_requests IS NOT TRUE THEN 'of which the process does not know'
            ELSE concat('which is ', t.status, ' on a process that is ', p.status)
        END) AS detail
FROM progressor.reply_requests q
LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE t.status IS NULL
    OR p.has_reply_requests IS NOT TRUE
    OR CASE
        WHEN q.kind = 'start' THEN p.status = 'finished'
        ELSE t.finished_at IS NOT NULL
            AND NOT (p.status = 'error' AND p.corrupted_by IS NOT DISTINCT FROM t.task_id)
    END

-- name: broken_processes_name_the_failed_task
-- says: the task that broke a process has a record, and did not succeed
-- The task that breaks a process ends in error with it; retention keeps that task. It may run again, or be cancelled
-- then. An imported process may name none.
SELECT p.namespace, p.process_id,
    concat('task ', p.corrupted_by, ' broke it, ',
        CASE
            WHEN b.status IS NULL THEN 'and has no record'
            ELSE concat('and its record says ', b.status)
        END) AS detail
FROM progressor.processes p
LEFT JOIN progressor.tasks b
    ON (b.slot, b.namespace, b.process_id, b.task_id)
        = (p.slot, p.namespace, p.process_id, p.corrupted_by)
WHERE p.detail IS NOT NULL
    AND p.corrupted_by IS NOT NULL
    AND coalesce(b.status, 'finished') = 'finished'

-- name: waiting_tasks_are_due_in_order
-- says: the first waiting task of a process is due, unless one is leased, and no other is
-- On a process without a running step, only the first waiting task is due: calls by id, then the earliest timer.
-- The transaction that removes the first task also makes the next one due, or continues with it. An init
-- task that is held back by its constraints comes before all others, outside the queue.
SELECT s.namespace, s.process_id,
    concat(s.task_type, ' ', s.task_id, ' is ', s.status,
        CASE WHEN s.due_at IS NULL THEN ' without a due time' ELSE ' and due' END,
        ', number ', s.place, ' in queue',
        CASE
            WHEN s.is_busy THEN ' behind a lease, or an init task that is kept'
            ELSE ' with nothing leased'
        END) AS detail
FROM (
    SELECT s.*, coalesce(r.task_id, g.task_id) IS NOT NULL AS is_busy, row_number() OVER queue AS place
    FROM progressor.schedule s
    LEFT JOIN progressor.running r USING (slot, namespace, process_id)
    LEFT JOIN progressor.gated g
        ON (g.slot, g.namespace, g.process_id) = (s.slot, s.namespace, s.process_id)
        AND g.task_type = 'init'
        AND g.state <> 'available'
    WINDOW queue AS (
        PARTITION BY s.slot, s.namespace, s.process_id
        ORDER BY s.task_type IN ('timeout', 'remove'),
            CASE WHEN s.task_type IN ('timeout', 'remove') THEN s.due_at END, s.task_id
    )
) s
WHERE (NOT s.is_busy AND s.place = 1) <> (s.status = 'waiting' AND s.due_at IS NOT NULL)

-- name: timer_names_are_unique_in_a_process
-- says: no two timers of a process have the same name, and a process with named timers is marked so
-- Timers in the schedule, held, or with constraints. insert_timers sets the flag, and settle_timers and settle_tasks
-- cancel the timer that a step replaces.
SELECT k.namespace, k.process_id,
    concat(count(*), ' timers named "', t.timer_name, '": ', string_agg(k.task_id::text, ', ')) AS detail
FROM (
    SELECT slot, namespace, process_id, task_id
    FROM progressor.schedule
    WHERE task_type IN ('timeout', 'remove')
    UNION
    SELECT slot, namespace, process_id, task_id
    FROM progressor.held
    WHERE task_type IN ('timeout', 'remove')
    UNION
    SELECT slot, namespace, process_id, task_id
    FROM progressor.gated
    WHERE task_type IN ('timeout', 'remove')
) k
JOIN progressor.processes p USING (slot, namespace, process_id)
JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
WHERE t.status NOT IN ('running', 'finished', 'error', 'cancelled')
GROUP BY k.slot, k.namespace, k.process_id, t.timer_name, p.has_named_timers
HAVING count(*) > 1 OR (t.timer_name IS NOT NULL AND NOT p.has_named_timers)

-- name: ids_are_below_their_sequences
-- says: no task and no lease has a number that its sequence has yet to give out
-- Ids and tokens are drawn from the sequences before they are written, and a sequence is read after the
-- snapshot is taken. Behind its tables it is where a copy of the database forgot the sequences: then
-- ids are given twice, and the fence is gone.
SELECT w.namespace, w.process_id,
    concat('task ', w.task_id, coalesce(', token ' || w.token, ''),
        ': a number that the sequence has yet to give') AS detail
FROM (
    SELECT namespace, process_id, task_id, token
    FROM progressor.running
    UNION ALL
    SELECT namespace, process_id, task_id, NULL
    FROM progressor.schedule
    UNION ALL
    SELECT namespace, process_id, task_id, NULL
    FROM progressor.gated
) w
WHERE w.task_id > (SELECT last_value FROM progressor.task_ids)
    OR w.token > (SELECT last_value FROM progressor.lease_tokens)

-- name: last_event_ids_match_the_histories
-- says: the last event of an active process is the one that the process names
-- Of the processes at work. settle_tasks writes the events and the count at once.
SELECT r.namespace, r.process_id,
    concat('its last event is ', coalesce(e.event_id, 0), ', and the process says ',
        p.last_event_id) AS detail
FROM progressor.running r
JOIN progressor.processes p USING (slot, namespace, process_id)
LEFT JOIN LATERAL (
    SELECT e.event_id
    FROM progressor.events e
    WHERE (e.slot, e.namespace, e.process_id) = (r.slot, r.namespace, r.process_id)
    ORDER BY e.slot DESC, e.namespace DESC, e.process_id DESC, e.event_id DESC
    LIMIT 1
) e ON true
WHERE coalesce(e.event_id, 0) <> p.last_event_id

-- name: unfinished_tasks_are_scheduled_or_leased
-- says: a waiting task is scheduled, held or kept by its constraints, and a running one is leased
-- deep
-- The other direction of leases_match_their_tasks and scheduled_tasks_match_their_records.
SELECT t.namespace, t.process_id,
    concat(t.task_type, ' ', t.task_id, ' is ', t.status, ', and ',
        CASE
            WHEN t.status = 'running' THEN 'it has no lease'
            ELSE 'neither in the schedule, nor held, nor kept by its constraints'
        END) AS detail
FROM progressor.tasks t
LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.running r USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.gated g USING (slot, namespace, process_id, task_id)
LEFT JOIN progressor.held h USING (slot, namespace, process_id, task_id)
WHERE (t.status = 'waiting' AND coalesce(s.task_id, g.task_id, h.task_id) IS NULL)
    OR (t.status = 'running' AND r.task_id IS NULL)

-- name: rows_have_a_process
-- says: every task and event belongs to a process, and every process to a namespace
-- deep
-- A transaction that deletes a process also deletes all its rows. A namespace is deleted only once
-- it has no processes, under a lock that starts wait for.
SELECT o.namespace, o.process_id, concat(o.what, ' of a process that does not exist') AS detail
FROM (
    SELECT slot, namespace, process_id, concat('task ', task_id) AS what FROM progressor.tasks
    UNION ALL
    SELECT slot, namespace, process_id, concat('event ', event_id) FROM progressor.events
) o
LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE p.process_id IS NULL
UNION ALL
SELECT p.namespace, p.process_id, 'a process of a namespace that does not exist'
FROM progressor.processes p
LEFT JOIN progressor.namespaces n ON n.name = p.namespace
WHERE n.name IS NULL

-- name: event_ids_have_no_gaps
-- says: the event ids of a process run from 1 to its last
-- deep
-- settle_tasks and put_process number events from last_event_id on, under the lock, and write both.
SELECT p.namespace, p.process_id,
    concat('events: ', count(e.event_id), ', the last is ', coalesce(max(e.event_id), 0),
        ', and the process says ', p.last_event_id) AS detail
FROM progressor.processes p
LEFT JOIN progressor.events e USING (slot, namespace, process_id)
GROUP BY p.slot, p.namespace, p.process_id
-- So many different ones, from 1 on by a constraint, and none above: no gap.
HAVING count(e.event_id) <> p.last_event_id
    OR coalesce(max(e.event_id), 0) <> p.last_event_id

-- name: tasks_name_their_own_events
-- says: a task owns the events that its record names, and only a success has any
-- deep
-- The settlement that succeeds writes the events and their numbers into the record of the task;
-- only a task that succeeded has any. Records may be deleted before their events.
SELECT t.namespace, t.process_id,
    concat(t.task_type, ' ', t.task_id, ' (', t.status, ') names events: ', t.event_count,
        ' from ', coalesce(t.first_event_id, 0), ' on, and has ', count(e.event_id),
        ' from ', coalesce(min(e.event_id), 0), ' on') AS detail
FROM progressor.tasks t
LEFT JOIN progressor.events e USING (slot, namespace, process_id, task_id)
GROUP BY t.slot, t.namespace, t.process_id, t.task_id
HAVING count(e.event_id) <> t.event_count
    OR min(e.event_id) IS DISTINCT FROM t.first_event_id
    OR (t.event_count > 0 AND t.status <> 'finished')

-- name: processes_leave_init_with_their_init_task
-- says: a process is in init for as long as its init task has not ended
-- deep
-- The settlement of the init task is what brings a process out of init; an import has an init task
-- that finished before it was written.
SELECT p.namespace, p.process_id,
    concat('it is ', p.status, ', and its init task ', p.init_task_id,
        CASE
            WHEN t.status IS NULL THEN ' has no record'
            ELSE concat(' is ', t.task_type, ', ', t.status)
        END) AS detail
FROM progressor.processes p
LEFT JOIN progressor.tasks t
    ON (t.slot, t.namespace, t.process_id, t.task_id)
     = (p.slot, p.namespace, p.process_id, p.init_task_id)
WHERE t.task_type IS DISTINCT FROM 'init'
    OR (p.status <> 'error' AND (p.status = 'init') <> (t.status IN ('waiting', 'running')))

-- name: idempotency_keys_are_unique
-- says: an idempotency key names one task of its process
-- deep
-- tasks_by_idempotency_key refuses a second one, as long as it is there and whole.
SELECT t.namespace, t.process_id,
    concat('key ', t.idempotency_key, ' names ', count(*), ' tasks') AS detail
FROM progressor.tasks t
WHERE t.idempotency_key IS NOT NULL
GROUP BY t.slot, t.namespace, t.process_id, t.idempotency_key
HAVING count(*) > 1

-- name: finished_tasks_were_leased
-- says: a task succeeds only after it was begun
-- deep
-- Only a settlement finishes a task, and only of an attempt that a lease began; but for the init
-- task of an import, which never ran.
SELECT t.namespace, t.process_id,
    concat(t.task_type, ' ', t.task_id, ' succeeded, and was never begun') AS detail
FROM progressor.tasks t
JOIN progressor.processes p USING (slot, namespace, process_id)
WHERE t.status = 'finished'
    AND (t.attempt_count = 0 OR t.started_at IS NULL)
    AND NOT (t.task_id = p.init_task_id AND t.scheduled_at IS NULL)

-- name: counts_equal_processes
-- says: the counts of processes by status equal the processes
-- deep
-- Whatever changes a status counts it in the same transaction (count_changes). Not while a replica of a release
-- that does not count runs, nor until the scan after it: then process_count_state says so.
SELECT s.namespace, '' AS process_id,
    concat('the count of processes in ', s.status, ' is off by ', -sum(s.process_count)) AS detail
FROM (
    SELECT p.namespace, p.status, count(*) AS process_count
    FROM progressor.processes p
    GROUP BY p.namespace, p.status
    UNION ALL
    SELECT c.namespace, c.status_after, -c.process_count
    FROM progressor.process_counts c
    UNION ALL
    SELECT c.namespace, c.status_before, c.process_count
    FROM progressor.process_counts c
) s
WHERE s.status IS NOT NULL AND (SELECT e.is_exact FROM progressor.process_count_state e)
GROUP BY s.namespace, s.status
HAVING sum(s.process_count) <> 0
