-- Reads the state of the work that a run started, as its schedule sees it: running, done, failed, cancelled or
-- gone. A process that has ended stays so for the schedule, even if it is repaired.
-- Returns: the state.
CREATE FUNCTION read_run_state(
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_task_type  task_type,
    p_task_id    bigint
)
RETURNS schedule_run_state
STABLE
BY KEY
AS $$
BEGIN
    IF p_task_type = 'init' THEN
        RETURN coalesce((
            SELECT CASE p.status
                WHEN 'error' THEN 'failed'
                WHEN 'finished' THEN
                    CASE WHEN p.end_reason IS NOT NULL THEN 'cancelled'
                    WHEN p.led_by IS NOT NULL THEN coalesce((
                        SELECT CASE j.state WHEN 'cancelled' THEN 'cancelled' ELSE 'done' END
                        FROM jobs j
                        WHERE (j.slot, j.namespace, j.process_id)
                            = (p.slot, p.namespace, p.process_id)
                    ), 'done') ELSE 'done' END
                ELSE 'running'
            END
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
                AND p.init_task_id = p_task_id
        ), 'gone')::schedule_run_state;
    END IF;
    RETURN coalesce((
        SELECT CASE t.status
            WHEN 'finished' THEN 'done'
            WHEN 'error' THEN 'failed'
            WHEN 'cancelled' THEN 'cancelled'
            ELSE 'running'
        END
        FROM tasks t
        WHERE (t.slot, t.namespace, t.process_id, t.task_id)
            = (p_slot, p_namespace, p_process_id, p_task_id)
    ), 'gone')::schedule_run_state;
END;
$$;
