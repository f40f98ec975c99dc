-- Resumes a failed job whose leader was repaired, or is with this call; a deadline that has passed is cleared. If
-- all nodes have ended, the leader gets another join. If the leader is itself a node of another job, that node is
-- left to maintain_job, since its lock is not known here. What was held on a leader in error waits again.
-- Locks: none of its own; the caller has locked the leader. If it is gated, as settle_gates.
-- Returns: of a leader that was in error, the first task that is due, as settle_gates returns it.
CREATE FUNCTION resume_job(
    LIKE own_arguments,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text
)
RETURNS jsonb
BY INDEX
AS $$
DECLARE
    v_unfinished integer;
    v_recovers   boolean;
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
        RETURN NULL;
    END IF;
    UPDATE processes p
    SET status = 'running', previous_status = 'error', status_changed_at = p_now, detail = NULL,
        corrupted_by = NULL, broken_at = NULL, failure_id = NULL, failure_reason = NULL
    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
        AND p.status = 'error';
    v_recovers := FOUND;
    IF v_recovers THEN
        PERFORM count_changes(ARRAY[(p_namespace, 'error', 'running')::status_change]);
        PERFORM forget_memos(ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
        PERFORM release_held(
            p_replica_id, ARRAY[(p_slot, p_namespace, p_process_id)::process_key]);
        PERFORM enqueue_first_task(p_now, p_slot, p_namespace, p_process_id);
    END IF;
    IF v_unfinished = 0 THEN
        PERFORM add_join(p_now, p_replica_id, p_slot, p_namespace, p_process_id);
    END IF;
    RETURN CASE WHEN v_recovers THEN describe_recovered(
        p_now, p_replica_id, p_starvation_timeout,
        ARRAY[(p_slot, p_namespace, p_process_id)::process_key]) END;
END;
$$;
