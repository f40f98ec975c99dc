-- Releases gates of a process: those that a task holds for itself (if p_only_reserved: has reserved); or, without a
-- task, all but those of its available and queued tasks. What another available task has passed too, that holds.
-- Locks: none of its own; the caller has locked the process and these gates.
-- Returns: the released gates; null if there are none.
CREATE FUNCTION release_gates(
    p_slot          smallint,
    p_namespace     text,
    p_process_id    text,
    p_task_id       bigint,
    p_only_reserved boolean DEFAULT false
)
RETURNS text[]
AS $$
DECLARE
    v_gates text[];
BEGIN
    IF NOT p_only_reserved THEN
        UPDATE gate_holders h
        SET task_id = o.task_id, hold = o.hold
        FROM gated o
        WHERE (h.slot, h.namespace, h.process_id) = (p_slot, p_namespace, p_process_id)
            AND (p_task_id IS NULL OR (h.task_id = p_task_id AND h.hold = 'task'))
            AND NOT h.is_reserved
            AND (o.slot, o.namespace, o.process_id) = (p_slot, p_namespace, p_process_id)
            AND o.task_id IS DISTINCT FROM p_task_id
            AND o.state = 'available'
            AND h.gate = ANY (o.gates);
    END IF;
    WITH gone AS (
        DELETE FROM gate_holders h
        WHERE (h.slot, h.namespace, h.process_id) = (p_slot, p_namespace, p_process_id)
            AND CASE
                WHEN p_task_id IS NULL THEN NOT EXISTS (
                    SELECT
                    FROM gated o
                    WHERE (o.slot, o.namespace, o.process_id, o.task_id)
                            = (p_slot, p_namespace, p_process_id, h.task_id)
                        AND o.state = CASE
                            WHEN h.is_reserved THEN 'gates' ELSE 'available' END::gated_state
                )
                ELSE h.task_id = p_task_id
                    AND (h.is_reserved OR (h.hold = 'task' AND NOT p_only_reserved))
            END
        RETURNING h.gate
    )
    SELECT array_agg(o.gate) INTO v_gates FROM gone o;
    UPDATE gates g
    SET held = g.held - 1
    WHERE g.namespace = p_namespace AND g.gate = ANY (v_gates);
    RETURN v_gates;
END;
$$;
