-- Withdraws a join that has not ended, since nodes of its job run again: from the queue, or from the worker, whose
-- settlement then finds its lease gone. If the leader is itself a node of another job, that job may have ended and
-- rely on the settlement to stop the leader: this is left to maintain_job, which locks the other leader.
-- Locks: none of its own; the caller has locked the leader.
CREATE FUNCTION withdraw_join(
    p_now timestamptz, p_slot smallint, p_namespace text, p_process_id text
)
RETURNS void
BY INDEX
AS $$
DECLARE
    v_task_id bigint;
BEGIN
    SELECT t.task_id
    INTO v_task_id
    FROM jobs j
    JOIN tasks t
        ON (t.slot, t.namespace, t.process_id, t.task_id)
            = (j.slot, j.namespace, j.process_id, j.join_task_id)
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
        AND t.finished_at IS NULL;
    UPDATE jobs j
    SET join_task_id = NULL
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
        AND j.join_task_id IS NOT NULL;
    IF v_task_id IS NULL THEN
        RETURN;
    END IF;
    UPDATE tasks t
    SET status = 'cancelled', finished_at = p_now, error_code = 10,
        error_reason = 'JOIN_WITHDRAWN', error_message = 'nodes of the job are at work again',
        error_rejected = false
    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
        = (p_slot, p_namespace, p_process_id, v_task_id);
    DELETE FROM running r
    WHERE (r.slot, r.namespace, r.process_id) = (p_slot, p_namespace, p_process_id)
        AND r.task_id = v_task_id;
    IF FOUND THEN
        UPDATE jobs j
        SET upkeep_due_at = coalesce(j.upkeep_due_at, p_now)
        FROM find_process(p_slot, p_namespace, p_process_id) p
        WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
            AND p.leader_id IS NOT NULL;
    END IF;
    PERFORM forget_memos(ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
    DELETE FROM schedule s
    WHERE (s.slot, s.namespace, s.process_id, s.task_id)
        = (p_slot, p_namespace, p_process_id, v_task_id);
    PERFORM enqueue_first_task(p_now, p_slot, p_namespace, p_process_id);
END;
$$;
