-- Stops followers whose leader was removed while they ran: one without a running step breaks, and its queued tasks are
-- cancelled; one with a running step, and a locked one, are left for the next call.
-- Locks: the processes, in key order; then as halt_processes.
-- Returns: how many were stopped, whether there may be more, and the last key; the cancelled tasks, with the keys
-- of their processes; the keys of their own jobs, which need upkeep; and the effects on gates.
CREATE FUNCTION stop_orphans(
    LIKE own_arguments,
    p_limit      integer,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    OUT stopped    integer,
    OUT has_more   boolean,
    OUT slot       smallint,
    OUT namespace  text,
    OUT process_id text,
    OUT cancelled  jsonb,
    OUT upkeep     jsonb,
    OUT effects    jsonb
)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now     timestamptz;
    v_orphans process_key[];
    v_held    boolean[];
    v_halted  process_key[];
    v_details text[];
BEGIN
    v_orphans := ARRAY(
        SELECT (o.slot, o.namespace, o.process_id)::process_key
        FROM orphans o
        WHERE (o.slot, o.namespace, o.process_id) > (p_slot, p_namespace, p_process_id)
        ORDER BY o.slot, o.namespace, o.process_id
        LIMIT p_limit);
    v_held := lock_or_skip(v_orphans);
    v_now := coalesce(p_now, clock_timestamp());

    SELECT array_agg((p.slot, p.namespace, p.process_id)::process_key),
        array_agg('JOB_CANCELLED: its leader was removed'::text)
    INTO v_halted, v_details
    FROM unnest(v_orphans, v_held) AS i (slot, namespace, process_id, is_held)
    JOIN orphans o USING (slot, namespace, process_id)
    JOIN processes p USING (slot, namespace, process_id, init_task_id)
    LEFT JOIN running r USING (slot, namespace, process_id)
    WHERE NOT i.is_held AND p.status IN ('init', 'running') AND r.task_id IS NULL;
    IF v_halted IS NOT NULL THEN
        SELECT h.cancelled, h.effects
        INTO cancelled, effects
        FROM halt_processes(
            v_now, p_replica_id, p_starvation_timeout, 'error', v_halted, v_details) h;
        upkeep := end_jobs(v_now, v_halted, 'failed', v_details);
    END IF;
    DELETE FROM orphans o
    USING unnest(v_orphans, v_held) AS i (slot, namespace, process_id, is_held)
    WHERE (o.slot, o.namespace, o.process_id) = (i.slot, i.namespace, i.process_id)
        AND NOT i.is_held
        AND (
            SELECT r.task_id
            FROM running r
            JOIN processes p USING (slot, namespace, process_id)
            WHERE (r.slot, r.namespace, r.process_id) = (i.slot, i.namespace, i.process_id)
                AND p.init_task_id = o.init_task_id
        ) IS NULL;
    stopped := coalesce(cardinality(v_halted), 0);
    has_more := cardinality(v_orphans) >= p_limit;
    SELECT o.* INTO slot, namespace, process_id FROM unnest(v_orphans[cardinality(v_orphans):]) AS o;
END;
$$;
