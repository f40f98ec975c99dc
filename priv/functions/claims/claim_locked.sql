-- Leases to this replica those of the given tasks that wait and are due, or will be within p_ahead seconds. The caller
-- has locked their processes, and lets no step begin before its task is due: that is when it counts as started.
-- Rows that break an invariant do not fail the claim of the others: if several tasks of a process are due, the first
-- in the queue is leased and the others stay; a task that has ended already is taken out of the queue.
-- Locks: of those processes alone: schedule, tasks, running.
-- Returns: one row per task leased; of a task with constraints also what it has spent until now, see spent_us.
CREATE FUNCTION claim_locked(
    p_now           timestamptz,
    p_replica_id    bigint,
    p_grace         double precision,
    p_slot          smallint[],
    p_namespace     text[],
    p_process_id    text[],
    p_task_id       bigint[],
    p_expires_after double precision[],
    p_ahead         double precision
)
RETURNS SETOF claimed
BY INDEX
AS $$
BEGIN
    RETURN QUERY
    WITH item AS (
        SELECT i.*
        FROM unnest(p_slot, p_namespace, p_process_id, p_task_id, p_expires_after)
            AS i (slot, namespace, process_id, task_id, expires_after)
    ),
    due AS (
        SELECT DISTINCT ON (i.slot, i.namespace, i.process_id) i.slot, s.row_id, i.expires_after
        FROM item i
        CROSS JOIN LATERAL (
            SELECT s.ctid AS row_id, s.task_type, s.attempt
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                = (i.slot, i.namespace, i.process_id, i.task_id)
                -- Not "= 'waiting'": planned while the table is small, that would take schedule_due
                -- and walk past all that is overdue, for each item, for as long as the session lives.
                AND s.status <> 'blocked'
                AND s.due_at <= p_now + make_interval(secs => p_ahead)
                AND NOT EXISTS (
                    SELECT FROM running r
                    WHERE (r.slot, r.namespace, r.process_id) = (i.slot, i.namespace, i.process_id)
                )
            OFFSET 0
        ) s
        ORDER BY i.slot, i.namespace, i.process_id, s.task_type IN ('timeout', 'remove'),
            s.attempt = 0, i.task_id
    ),
    taken AS (
        DELETE FROM schedule s
        USING due d
        WHERE s.ctid = d.row_id AND s.slot BETWEEN d.slot AND d.slot
        RETURNING s.slot, s.namespace, s.process_id, s.task_id, s.task_type, s.attempt + 1 AS attempt,
            s.due_at, s.replica_id AS set_by, d.expires_after, nextval('lease_tokens') AS token
    ),
    begun AS (
        UPDATE tasks t
        SET status = 'running',
            attempt_count = k.attempt,
            scheduled_at = coalesce(t.scheduled_at, k.due_at),
            first_started_at = coalesce(t.first_started_at, greatest(p_now, k.due_at)),
            started_at = greatest(p_now, k.due_at),
            token = k.token,
            replica_id = p_replica_id
        FROM taken k
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (k.slot, k.namespace, k.process_id, k.task_id)
            AND t.finished_at IS NULL
        RETURNING k.slot, k.namespace, k.process_id, k.task_id, k.task_type, k.attempt, k.token,
            k.due_at, k.set_by, k.expires_after, t.started_at, t.args, t.caller_context,
            t.trace_context, t.history_after, t.history_limit, t.history_backward, t.step_timeout,
            t.scheduled_at, t.first_started_at, t.timer_name, t.has_memos, t.sender,
            extract(epoch FROM t.tried_for)::double precision AS tried_for
    ),
    leased AS (
        INSERT INTO running (
            slot, namespace, process_id, task_id, task_type, attempt, token, replica_id,
            leased_at, expires_at, has_memos
        )
        SELECT b.slot, b.namespace, b.process_id, b.task_id, b.task_type, b.attempt, b.token,
            p_replica_id, b.started_at,
            b.started_at + coalesce(b.step_timeout + make_interval(secs => p_grace),
                make_interval(secs => b.expires_after)),
            b.has_memos
        FROM begun b
    )
    SELECT b.slot, b.namespace, b.process_id, b.task_id, b.task_type, b.attempt, b.token, b.args,
        b.caller_context, b.trace_context, b.history_after, b.history_limit, b.history_backward,
        extract(epoch FROM b.step_timeout)::double precision, b.scheduled_at, b.started_at,
        b.first_started_at, b.due_at, b.set_by, p.status, p.previous_status, p.detail, p.aux_state,
        p.metadata, p.corrupted_by, p.created_at, p.status_changed_at, p.last_event_id,
        p.init_task_id,
        -- Other tasks do not pay for the lookup.
        CASE WHEN p.is_gated THEN (
            SELECT spent_us(p_now, g, p_now)
            FROM gated g
            WHERE (g.slot, g.namespace, g.process_id, g.task_id)
                = (b.slot, b.namespace, b.process_id, b.task_id)
        ) END,
        build_job_part(
            p.led_by, p.leader_slot, p.leader_namespace, p.leader_id, p.node, p.job_options),
        p.state_version, b.timer_name, b.has_memos, b.sender, b.tried_for
    FROM begun b
    JOIN processes p USING (slot, namespace, process_id);
END;
$$;
