-- Cancels what processes in error have queued or in hand, a repair or a timer that runs again, before they
-- are brought back in another way: the step in hand finds its lease gone.
-- Locks: none of its own, the caller has locked the processes; then as halt_processes.
-- Returns: as halt_processes.
CREATE FUNCTION halt_busy_processes(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_slot               smallint[],
    p_namespace          text[],
    p_process_id         text[]
)
RETURNS halted
BY INDEX
SET enable_memoize = off
AS $$
DECLARE
    v_busy record;
BEGIN
    SELECT array_agg(k.slot) AS slots, array_agg(k.namespace) AS spaces,
        array_agg(k.process_id) AS ids,
        array_agg('a retry of its job begins it again'::text) AS details
    INTO v_busy
    FROM unnest(p_slot, p_namespace, p_process_id) AS k (slot, namespace, process_id)
    CROSS JOIN LATERAL (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
            AND p.status = 'error'
        OFFSET 0
    ) p
    CROSS JOIN LATERAL (
        SELECT r.task_id
        FROM running r
        WHERE (r.slot, r.namespace, r.process_id) = (k.slot, k.namespace, k.process_id)
        UNION ALL
        SELECT s.task_id
        FROM schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (k.slot, k.namespace, k.process_id)
        UNION ALL
        SELECT g.task_id
        FROM gated g
        WHERE (g.slot, g.namespace, g.process_id) = (k.slot, k.namespace, k.process_id)
        LIMIT 1
    ) w;
    IF v_busy.slots IS NOT NULL THEN
        RETURN halt_processes(
            p_now, p_replica_id, p_starvation_timeout, 'error', v_busy.slots, v_busy.spaces, v_busy.ids,
            v_busy.details);
    END IF;
    RETURN NULL;
END;
$$;
