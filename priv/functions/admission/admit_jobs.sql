-- Admits starts of processes that have a part in jobs from their first task on: leaders that the engine carries
-- (p_led_by), and those that a schedule starts (p_options). As admit_starts.
-- Locks: as admit_starts.
-- Returns: as admit_starts.
CREATE FUNCTION admit_jobs(
    LIKE admit_starts,
    p_led_by  text[],
    p_options json[]
)
RETURNS SETOF admitted_start
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_row admitted_start;
BEGIN
    FOR v_row IN
        SELECT *
        FROM admit_starts(
            p_now, p_replica_id, p_slot, p_namespace, p_process_id, p_args, p_caller_context,
            p_trace_context, p_history_after, p_history_limit, p_history_backward,
            p_idempotency_key, p_fingerprint, p_metadata, p_waits, p_run, p_expires_after,
            p_sender, p_open_max)
    LOOP
        IF v_row.verdict = 'accepted' THEN
            UPDATE processes p
            SET led_by = p_led_by[v_row.item], job_options = p_options[v_row.item]
            WHERE (p.slot, p.namespace, p.process_id)
                = (p_slot[v_row.item], p_namespace[v_row.item], p_process_id[v_row.item]);
        END IF;
        RETURN NEXT v_row;
    END LOOP;
END;
$$;
