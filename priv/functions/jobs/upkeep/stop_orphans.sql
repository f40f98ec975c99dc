-- Stops followers whose leader was removed while they ran: one without a step in hand breaks, and all that it
-- has queued is cancelled; one with a step in hand, and a locked one, are left for the next time.
-- The keys are looked up before they are locked, from a key on, and looked at again after.
-- Locks: the processes, in key order; then as halt_processes.
-- Returns: how many were stopped, whether there may be more, and the last key; the tasks that were cancelled, with
-- the keys of their processes; the keys of their own jobs, which need upkeep; and the effects on gates.
CREATE FUNCTION stop_orphans(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_limit              integer,
    p_slot               smallint,
    p_namespace          text,
    p_process_id         text,
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
    v_orphans record;
    v_held    boolean[];
    v_halted  record;
BEGIN
    SELECT array_agg(o.slot ORDER BY o.place) AS slots,
        array_agg(o.namespace ORDER BY o.place) AS spaces,
        array_agg(o.process_id ORDER BY o.place) AS ids
    INTO v_orphans
    FROM (
        SELECT o.slot, o.namespace, o.process_id,
            row_number() OVER (ORDER BY o.slot, o.namespace, o.process_id) AS place
        FROM orphans o
        WHERE (o.slot, o.namespace, o.process_id) > (p_slot, p_namespace, p_process_id)
        ORDER BY o.slot, o.namespace, o.process_id
        LIMIT p_limit
    ) o;
    v_held := lock_or_skip(v_orphans.slots, v_orphans.spaces, v_orphans.ids);
    v_now := coalesce(p_now, clock_timestamp());

    SELECT array_agg(p.slot) AS slots, array_agg(p.namespace) AS spaces,
        array_agg(p.process_id) AS ids,
        array_agg('JOB_CANCELLED: its leader was removed'::text) AS details
    INTO v_halted
    FROM unnest(v_orphans.slots, v_orphans.spaces, v_orphans.ids, v_held)
        AS i (slot, namespace, process_id, is_held)
    JOIN orphans o USING (slot, namespace, process_id)
    JOIN processes p USING (slot, namespace, process_id, init_task_id)
    LEFT JOIN running r USING (slot, namespace, process_id)
    WHERE NOT i.is_held AND p.status IN ('init', 'running') AND r.task_id IS NULL;
    IF v_halted.slots IS NOT NULL THEN
        SELECT h.cancelled, h.effects
        INTO cancelled, effects
        FROM halt_processes(
            v_now, p_replica_id, p_starvation_timeout, 'error', v_halted.slots, v_halted.spaces,
            v_halted.ids, v_halted.details) h;
        upkeep := end_jobs(
            v_now, v_halted.slots, v_halted.spaces, v_halted.ids,
            array_fill('failed'::job_state, ARRAY[cardinality(v_halted.slots)]),
            v_halted.details);
    END IF;
    DELETE FROM orphans o
    USING unnest(v_orphans.slots, v_orphans.spaces, v_orphans.ids, v_held)
        AS i (slot, namespace, process_id, is_held)
    WHERE (o.slot, o.namespace, o.process_id) = (i.slot, i.namespace, i.process_id)
        AND NOT i.is_held
        AND (
            SELECT r.task_id
            FROM running r
            JOIN processes p USING (slot, namespace, process_id)
            WHERE (r.slot, r.namespace, r.process_id) = (i.slot, i.namespace, i.process_id)
                AND p.init_task_id = o.init_task_id
        ) IS NULL;
    stopped := coalesce(cardinality(v_halted.slots), 0);
    has_more := coalesce(cardinality(v_orphans.slots), 0) >= p_limit;
    slot := v_orphans.slots[cardinality(v_orphans.slots)];
    namespace := v_orphans.spaces[cardinality(v_orphans.slots)];
    process_id := v_orphans.ids[cardinality(v_orphans.slots)];
END;
$$;
