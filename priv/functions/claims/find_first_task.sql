-- Finds the first task in the queue of a process: a call that has begun and waits for its retry, then calls by id,
-- then the earliest timer. Until the init task has ended, only that task counts. It reads at most two rows: no task
-- enters the queue before one that has begun (find_gated_cause).
-- Locks: none; the caller has locked the process.
-- Returns: the task; a row of nulls if there is none.
CREATE FUNCTION find_first_task(p_slot smallint, p_namespace text, p_process_id text)
RETURNS schedule
STABLE
AS $$
DECLARE
    v_first schedule%ROWTYPE;
BEGIN
    SELECT f.*
    INTO v_first
    FROM (
        SELECT s.*
        FROM schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (p_slot, p_namespace, p_process_id)
            AND s.task_type NOT IN ('timeout', 'remove')
        ORDER BY s.slot, s.namespace, s.process_id, s.task_id
        LIMIT 2
    ) f
    ORDER BY f.attempt = 0 OR f.due_at IS NULL, f.task_id
    LIMIT 1;
    IF NOT FOUND THEN
        SELECT s.*
        INTO v_first
        FROM schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (p_slot, p_namespace, p_process_id)
            AND s.task_type IN ('timeout', 'remove')
        ORDER BY s.slot, s.namespace, s.process_id, s.due_at, s.task_id
        LIMIT 1;
    END IF;
    IF v_first.task_type <> 'init' AND (
        SELECT p.status
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
    ) = 'init' THEN
        RETURN NULL;
    END IF;
    RETURN v_first;
END;
$$;
