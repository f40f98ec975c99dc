-- Inserts new timers, blocked: the caller lets the earliest one wait. Those with constraints wait for these
-- (constrain_tasks).
-- Raises: PT001 if a process has more than 32 timers.
-- Locks: as constrain_tasks; the caller has locked the processes.
CREATE FUNCTION insert_timers(p_now timestamptz, p_replica_id bigint, p_timers timer_change[])
RETURNS void
AS $$
DECLARE
    v_key         process_key[];
    v_task_id     bigint[];
    v_constraints json[];
BEGIN
    INSERT INTO tasks (
        slot, namespace, process_id, task_id, task_type, status, created_at, scheduled_at, step_timeout,
        history_after, history_limit, history_backward, args, trace_context, timer_name
    )
    SELECT c.slot, c.namespace, c.process_id, c.task_id, c.task_type, 'waiting', p_now, c.due_at,
        c.step_timeout, c.history_after, c.history_limit, c.history_backward, c.args, c.trace_context,
        nullif(c.name, '')
    FROM unnest(p_timers) AS c;
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
    )
    SELECT c.slot, c.namespace, c.process_id, c.task_id, c.task_type, 'blocked', c.due_at, p_replica_id
    FROM unnest(p_timers) AS c;

    -- The flag stays: a process that has used names will use them again.
    UPDATE processes p
    SET has_named_timers = true
    FROM (
        SELECT DISTINCT c.slot, c.namespace, c.process_id
        FROM unnest(p_timers) AS c
        WHERE c.name <> ''
    ) c
    WHERE (p.slot, p.namespace, p.process_id) = (c.slot, c.namespace, c.process_id)
        AND NOT p.has_named_timers;

    PERFORM
    FROM (SELECT DISTINCT c.slot, c.namespace, c.process_id FROM unnest(p_timers) AS c) c
    WHERE 32 < (SELECT count(*) FROM find_timers(c.slot, c.namespace, c.process_id));
    IF FOUND THEN
        RAISE EXCEPTION 'a process can have at most 32 timers' USING ERRCODE = 'PT001';
    END IF;

    SELECT array_agg((c.slot, c.namespace, c.process_id)::process_key), array_agg(c.task_id),
        array_agg(c.constraints)
    INTO v_key, v_task_id, v_constraints
    FROM unnest(p_timers) AS c
    WHERE c.constraints IS NOT NULL;
    IF v_key IS NOT NULL THEN
        PERFORM constrain_tasks(p_now, p_replica_id, v_key, v_task_id, v_constraints);
    END IF;
END;
$$;
