-- Resumes a failed job whose leader was repaired, or is with this call; a deadline that has passed is cleared. If
-- all nodes have ended, the leader gets another join. If the leader is itself a node of another job, that node is
-- left to maintain_job, since its lock is not known here.
-- Locks: none of its own; the caller has locked the leader.
CREATE FUNCTION resume_job(
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
    v_unfinished integer;
BEGIN
    UPDATE jobs j
    SET state = 'running', detail = NULL, ended_at = NULL, updated_at = p_now,
        deadline_at = CASE WHEN j.deadline_at > p_now THEN j.deadline_at END,
        join_task_id = NULL, revision = j.revision + 1,
        upkeep_due_at = CASE WHEN j.ready > 0 OR p.leader_id IS NOT NULL THEN p_now END
    FROM find_process(p_slot, p_namespace, p_process_id) p
    WHERE (j.slot, j.namespace, j.process_id) = (p_slot, p_namespace, p_process_id)
        AND j.state = 'failed'
    RETURNING j.waiting + j.ready + j.running INTO v_unfinished;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE processes p
    SET status = 'running', previous_status = 'error', status_changed_at = p_now, detail = NULL,
        corrupted_by = NULL
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
        AND p.status = 'error';
    IF v_unfinished = 0 THEN
        PERFORM add_join(p_now, p_replica_id, p_slot, p_namespace, p_process_id);
    END IF;
END;
$$;
