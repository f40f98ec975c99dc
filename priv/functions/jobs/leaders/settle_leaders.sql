-- Moves the jobs of those leaders whose tasks settle_job_tasks has settled: a leader that has finished or broken
-- ends its job; one that a repair has brought back goes on with it.
-- Locks: none of its own; settle_job_tasks has locked the leaders.
CREATE FUNCTION settle_leaders(
    p_now           timestamptz,
    p_replica_id    bigint,
    p_settled       boolean[],
    p_slot          smallint[],
    p_namespace     text[],
    p_process_id    text[],
    p_outcome       text[],
    p_error_message text[],
    p_leads         boolean[]
)
RETURNS void
BY ITEM
AS $$
DECLARE
    v_job record;
BEGIN
    FOR v_job IN
        SELECT j.slot, j.namespace, j.process_id, j.state,
            j.waiting + j.ready + j.running AS unfinished_count, p.status, p_error_message[i.item] AS message
        FROM unnest(p_leads) WITH ORDINALITY AS i (leads, item)
        CROSS JOIN LATERAL find_process(p_slot[i.item], p_namespace[i.item], p_process_id[i.item]) p
        CROSS JOIN LATERAL find_job(p_slot[i.item], p_namespace[i.item], p_process_id[i.item]) j
        WHERE i.leads AND p_settled[i.item]
    LOOP
        IF v_job.state = 'running' AND v_job.status IN ('finished', 'error') THEN
            PERFORM end_jobs(
                p_now, ARRAY[(v_job.slot, v_job.namespace, v_job.process_id)::process_key],
                CASE v_job.status WHEN 'finished' THEN 'done' ELSE 'failed' END::job_state,
                ARRAY[CASE WHEN v_job.status = 'error' THEN v_job.message END]);
        ELSIF v_job.state = 'failed' AND v_job.status = 'finished' THEN
            -- A repair that completes it.
            UPDATE jobs j
            SET state = 'done', detail = NULL, ended_at = p_now, updated_at = p_now,
                revision = j.revision + 1
            WHERE (j.slot, j.namespace, j.process_id)
                = (v_job.slot, v_job.namespace, v_job.process_id);
        ELSIF v_job.state = 'failed' AND v_job.status = 'running' THEN
            UPDATE jobs j
            SET state = 'running', detail = NULL, ended_at = NULL, updated_at = p_now,
                deadline_at = CASE WHEN j.deadline_at > p_now THEN j.deadline_at END,
                revision = j.revision + 1
            WHERE (j.slot, j.namespace, j.process_id)
                = (v_job.slot, v_job.namespace, v_job.process_id);
            IF v_job.unfinished_count = 0 THEN
                PERFORM add_join(
                    p_now, p_replica_id, v_job.slot, v_job.namespace, v_job.process_id);
            END IF;
        END IF;
    END LOOP;
END;
$$;
