-- Restarts nodes whose followers are in error. An init that broke its follower runs again under its own id, without
-- another turn in its order, as in run_broken_again; one that was cancelled is replaced by a new init task of the same
-- args. If the init has succeeded, the follower runs on at once, and the timer that broke it, or those that were
-- cancelled when it was stopped, are set again: for their own instants, or now if these have passed. A task
-- that replaces another takes over its memos.
-- What was held on it waits again; describe_recovered tells of it.
-- Locks: none of its own; the caller has locked leader and followers, and called halt_processes for these.
-- Returns: the tasks that are due now, and the constraints that they have yet to be given.
CREATE FUNCTION restart_nodes(
    p_now        timestamptz,
    p_replica_id bigint,
    p_slot       smallint,  -- of the leader
    p_namespace  text,
    p_process_id text,
    p_ordinal    integer[]
)
RETURNS TABLE (
    slot smallint, namespace text, process_id text, task_id bigint, constraints json
)
BY ITEM
AS $$
BEGIN
    RETURN QUERY
    WITH again AS MATERIALIZED (
        SELECT n.follower_slot AS slot, n.follower_namespace AS namespace,
            n.follower_id AS process_id, n.node_row, n.args, p.process_row,
            CASE WHEN i.status <> 'finished' THEN 'init' ELSE b.task_type END::task_type AS task_type,
            CASE WHEN i.broken_row IS NOT NULL THEN p.init_task_id
                WHEN i.status <> 'finished' OR b.task_type IS NOT NULL THEN nextval('task_ids')
            END AS task_id,
            CASE WHEN i.broken_row IS NOT NULL THEN (n.constraints::jsonb - 'order')::json
                WHEN i.status <> 'finished' THEN n.constraints
                ELSE b.constraints
            END AS constraints,
            i.broken_row,
            CASE WHEN i.broken_row IS NULL THEN
                CASE WHEN i.status <> 'finished' THEN p.init_task_id ELSE b.task_id END
            END AS replaced_id,
            CASE WHEN i.broken_row IS NULL THEN
                CASE WHEN i.status <> 'finished' THEN i.has_memos ELSE b.has_memos END
            END AS has_memos,
            i.caller_context, coalesce(b.trace_context, i.trace_context) AS trace_context,
            b.step_timeout, b.history_after, b.history_limit, b.history_backward,
            b.args AS timer_args, greatest(p_now, b.scheduled_at) AS due_at, b.timer_name,
            row_number() OVER (
                PARTITION BY o.ordinal ORDER BY greatest(p_now, b.scheduled_at), b.task_id) AS place
        FROM unnest(p_ordinal) AS o (ordinal)
        CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n
        JOIN LATERAL find_process(n.follower_slot, n.follower_namespace, n.follower_id) p
            ON p.status = 'error'
        CROSS JOIN LATERAL (
            SELECT t.status, t.caller_context, t.trace_context, t.has_memos,
                CASE WHEN t.status = 'error' AND t.task_id = p.corrupted_by THEN t.ctid END
                    AS broken_row
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id, p.init_task_id)
            OFFSET 0
        ) i
        LEFT JOIN LATERAL (
            SELECT DISTINCT ON (t.timer_name) t.task_id, t.task_type, t.constraints, t.trace_context,
                t.step_timeout, t.history_after, t.history_limit, t.history_backward, t.args,
                t.scheduled_at, t.timer_name, t.has_memos
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id)
                    = (n.follower_slot, n.follower_namespace, n.follower_id)
                AND t.task_type IN ('timeout', 'remove')
                AND CASE
                    WHEN p.corrupted_by IS NOT NULL THEN t.task_id = p.corrupted_by
                    -- By halt_processes, at one instant with the process.
                    ELSE t.status = 'cancelled' AND t.finished_at = p.status_changed_at
                END
            ORDER BY t.timer_name, t.task_id DESC
        ) b ON i.status = 'finished'
    ),
    moved AS (
        UPDATE job_nodes n
        SET state = 'running', begun = true, ended_at = NULL, updated_at = p_now,
            -- One that is ready was counted when it became that.
            attempt = n.attempt + (n.state <> 'ready')::integer,
            started_at = coalesce(n.started_at, p_now), ready_at = coalesce(n.ready_at, p_now),
            result = NULL, error_code = NULL, error_reason = NULL, error_message = NULL,
            revision = j.revision + 1
        FROM again a
        CROSS JOIN LATERAL find_job(p_slot, p_namespace, p_process_id) j
        WHERE n.ctid = a.node_row AND n.slot BETWEEN p_slot AND p_slot
    ),
    brought AS (
        UPDATE processes p
        SET status = CASE WHEN a.task_type = 'init' THEN 'init' ELSE 'running' END::process_status,
            previous_status = 'error', status_changed_at = p_now, detail = NULL,
            corrupted_by = NULL, broken_at = NULL, failure_id = NULL, failure_reason = NULL,
            init_task_id = CASE WHEN a.task_type = 'init' THEN a.task_id ELSE p.init_task_id END
        FROM again a
        WHERE p.ctid = a.process_row AND p.slot BETWEEN a.slot AND a.slot
        RETURNING p.namespace, p.status
    ),
    counted AS (
        INSERT INTO process_counts (namespace, status_before, status_after, process_count)
        SELECT b.namespace, 'error', b.status, count(*)
        FROM brought b
        GROUP BY b.namespace, b.status
    ),
    recorded AS (
        INSERT INTO tasks (
            slot, namespace, process_id, task_id, task_type, status, created_at, scheduled_at,
            step_timeout, history_after, history_limit, history_backward, args, caller_context,
            trace_context, timer_name, has_memos
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, a.task_type, 'waiting', p_now, a.due_at,
            a.step_timeout, a.history_after, a.history_limit, a.history_backward,
            CASE WHEN a.task_type = 'init' THEN a.args ELSE a.timer_args END,
            CASE WHEN a.task_type = 'init' THEN a.caller_context END, a.trace_context, a.timer_name,
            a.has_memos
        FROM again a
        WHERE a.task_id IS NOT NULL AND a.broken_row IS NULL
    ),
    repeated AS (
        UPDATE tasks t
        SET status = 'waiting', attempt_count = 0, scheduled_at = p_now, first_started_at = NULL,
            started_at = NULL, tried_for = NULL, finished_at = NULL, token = NULL,
            replica_id = NULL
        FROM again a
        WHERE t.ctid = a.broken_row AND t.slot BETWEEN a.slot AND a.slot
    ),
    taken_over AS (
        UPDATE memos m
        SET task_id = a.task_id
        FROM again a
        WHERE a.has_memos
            AND (m.slot, m.namespace, m.process_id, m.task_id)
                = (a.slot, a.namespace, a.process_id, a.replaced_id)
    ),
    scheduled AS (
        INSERT INTO schedule (
            slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
        )
        SELECT a.slot, a.namespace, a.process_id, a.task_id, a.task_type,
            CASE WHEN a.place = 1 THEN 'waiting' ELSE 'blocked' END::task_status, a.due_at,
            p_replica_id
        FROM again a
        WHERE a.task_id IS NOT NULL
    )
    SELECT a.slot, a.namespace, a.process_id, a.task_id, a.constraints
    FROM again a
    WHERE a.task_id IS NOT NULL;
    PERFORM forget_memos(ARRAY(
        SELECT (n.follower_slot, n.follower_namespace, n.follower_id)::process_key
        FROM unnest(p_ordinal) AS o (ordinal)
        CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n));
    FOR slot, namespace, process_id IN
        SELECT DISTINCT n.follower_slot, n.follower_namespace, n.follower_id
        FROM unnest(p_ordinal) AS o (ordinal)
        CROSS JOIN LATERAL find_node(p_slot, p_namespace, p_process_id, o.ordinal) n
        JOIN held h
            ON (h.slot, h.namespace, h.process_id)
                = (n.follower_slot, n.follower_namespace, n.follower_id)
    LOOP
        PERFORM release_held(
            p_replica_id, ARRAY[(slot, namespace, process_id)::process_key]);
        PERFORM enqueue_first_task(p_now, slot, namespace, process_id);
    END LOOP;
    PERFORM recount_job(p_now, p_slot, p_namespace, p_process_id);
END;
$$;
