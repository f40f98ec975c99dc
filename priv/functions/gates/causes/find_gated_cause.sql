-- Finds what a task with constraints waits for: time, order or process; or gates, if only they can be missing. It
-- waits for its process behind the first task of the queue there, unless it is older and that has not begun; and
-- behind an older call of its process that is queued for the same gates: one of a crowd is enough there. An old
-- task (p_is_old) does not wait for its process to be free, only to be next there. A timer yields to everything,
-- another timer that is due included.
-- On a process in error only the task that broke it runs again.
-- Locks: none; the caller has locked the process, and the order of the task where it may pass.
-- Returns: the state in which it waits.
CREATE FUNCTION find_gated_cause(
    p_now        timestamptz,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_task_id    bigint,
    p_is_old     boolean
)
RETURNS gated_state
AS $$
DECLARE
    v_task     gated%ROWTYPE;
    v_first    schedule%ROWTYPE;
    v_process  record;
    v_is_timer boolean;
BEGIN
    SELECT *
    INTO STRICT v_task
    FROM gated g
    WHERE (g.slot, g.namespace, g.process_id, g.task_id)
        = (p_slot, p_namespace, p_process_id, p_task_id);
    v_is_timer := v_task.task_type IN ('timeout', 'remove');
    IF v_task.run_at > p_now THEN
        RETURN 'time';
    END IF;
    IF v_task.order_key IS NOT NULL AND EXISTS (
        SELECT
        FROM gated o
        WHERE (o.namespace, o.order_key) = (p_namespace, v_task.order_key)
            AND o.order_version < v_task.order_version
    ) THEN
        RETURN 'order';
    END IF;
    SELECT * INTO v_process FROM find_process(p_slot, p_namespace, p_process_id);
    IF v_process.status = 'error' AND p_task_id IS DISTINCT FROM v_process.corrupted_by THEN
        RETURN 'process';
    END IF;
    v_first := find_first_task(p_slot, p_namespace, p_process_id);
    IF v_first.task_type NOT IN ('timeout', 'remove')
        AND (v_is_timer OR v_first.task_id < p_task_id
            OR (v_first.attempt > 0 AND v_first.due_at IS NOT NULL)) THEN
        RETURN 'process';
    END IF;
    IF v_is_timer AND v_first.due_at <= p_now THEN
        RETURN 'process';
    END IF;
    IF (v_is_timer OR NOT p_is_old) AND EXISTS (
        SELECT
        FROM running r
        WHERE (r.slot, r.namespace, r.process_id) = (p_slot, p_namespace, p_process_id)
    ) THEN
        RETURN 'process';
    END IF;
    IF NOT v_is_timer AND v_task.gates <> '{}' AND EXISTS (
        SELECT
        FROM gated o
        WHERE (o.slot, o.namespace, o.process_id, o.state, o.gates)
                = (p_slot, p_namespace, p_process_id, 'gates', v_task.gates)
            AND o.task_id < p_task_id
            AND o.task_type NOT IN ('timeout', 'remove')
    ) THEN
        RETURN 'process';
    END IF;
    -- Of two that carry constraints, one after the other: what is available is in schedule, or running.
    IF v_task.task_type <> 'init' AND v_process.status = 'init' THEN
        RETURN 'process';
    END IF;
    RETURN 'gates';
END;
$$;
