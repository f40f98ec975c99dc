-- Tells the leader of a job that all its nodes have ended, by a join task in its queue; not where one is there
-- already, or where the leader is not running.
-- Locks: none of its own; the caller has locked the leader.
CREATE FUNCTION add_join(
    p_now        timestamptz,
    p_replica_id bigint,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text
)
RETURNS void
BY INDEX
AS $$
DECLARE
    v_task_id bigint;
BEGIN
    IF EXISTS (
        SELECT
        FROM jobs j
        JOIN tasks t
            ON (t.slot, t.namespace, t.process_id, t.task_id)
                = (j.slot, j.namespace, j.process_id, j.join_task_id)
            AND t.finished_at IS NULL
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
    ) OR NOT EXISTS (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
            AND p.status = 'running'
    ) THEN
        RETURN;
    END IF;
    v_task_id := nextval('task_ids');
    INSERT INTO tasks (
        slot, namespace, process_id, task_id, task_type, status, created_at, scheduled_at,
        caller_context, trace_context
    )
    SELECT p_slot, p_namespace, p_process_id, v_task_id, 'join', 'waiting', p_now, p_now,
        j.caller_context, j.trace_context
    FROM jobs j
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
    INSERT INTO schedule (
        slot, namespace, process_id, task_id, task_type, status, due_at, replica_id
    ) VALUES (
        p_slot, p_namespace, p_process_id, v_task_id, 'join', 'waiting', NULL, p_replica_id
    );
    PERFORM enqueue_first_task(p_now, p_slot, p_namespace, p_process_id);
    UPDATE jobs j
    SET join_task_id = v_task_id
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id);
END;
$$;
