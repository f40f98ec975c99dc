-- Cancels what processes in error have queued or in hand, a repair or a timer that runs again, before they
-- are brought back in another way: the step in hand finds its lease gone.
-- Locks: none of its own, the caller has locked the processes; then as halt_processes.
-- Returns: as halt_processes.
CREATE FUNCTION halt_busy_processes(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_key                process_key[]
)
RETURNS halted
BY INDEX
SET enable_memoize = off
AS $$
DECLARE
    v_busy process_key[];
BEGIN
    SELECT array_agg(k)
    INTO v_busy
    FROM unnest(p_key) AS k
    JOIN LATERAL find_process(k.slot, k.namespace, k.process_id) p ON p.status = 'error'
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
    IF v_busy IS NOT NULL THEN
        RETURN halt_processes(
            p_now, p_replica_id, p_starvation_timeout, 'error', v_busy, array_fill(
                'a retry of its job begins it again'::text, ARRAY[cardinality(v_busy)]));
    END IF;
    RETURN NULL;
END;
$$;
