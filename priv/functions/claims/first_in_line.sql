-- Tells who is first in the line of a process: calls by their ids, but before them one that has begun and
-- waits for its retry; then the timer. Before the init task has ended, nobody but that.
-- Of a crowd it looks at two: nobody comes into the line before one that has begun (gated_cause).
-- Locks: none; the caller has locked the process.
-- Returns: a row of null: nobody.
CREATE FUNCTION first_in_line(p_slot smallint, p_namespace text, p_process_id text)
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
            AND s.task_type IN ('timeout', 'remove');
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
