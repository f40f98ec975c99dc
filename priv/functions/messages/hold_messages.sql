-- Adds messages to processes in error as tasks that are held until their process comes back, as what was acknowledged
-- before it broke (settle_waits). Those with constraints are held by these.
-- p_messages: without their args.
-- Locks: the caller has locked the processes; then as settle_gates.
-- Returns: what settle_gates returns; null: nothing.
CREATE FUNCTION hold_messages(
    LIKE own_arguments, p_task_id bigint[], p_messages messages[]
)
RETURNS jsonb
BY ITEM
AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    INSERT INTO tasks (
        slot, namespace, process_id, task_id, task_type, status, created_at, args, caller_context,
        trace_context, is_acknowledged, sender
    )
    SELECT m.receiver_slot, m.receiver_namespace, m.receiver_id, p_task_id[m.ordinality],
        m.kind::task_type, 'waiting', v_now, (
            SELECT x.args
            FROM messages x
            WHERE (x.slot, x.namespace, x.process_id, x.message_id)
                = (m.slot, m.namespace, m.process_id, m.message_id)
        ), m.caller_context, m.trace_context, true,
        describe_sender(m.namespace, m.process_id, m.task_id)
    FROM unnest(p_messages) WITH ORDINALITY AS m;

    INSERT INTO held (slot, namespace, process_id, task_id, task_type, attempt, held_at)
    SELECT m.receiver_slot, m.receiver_namespace, m.receiver_id, p_task_id[m.ordinality],
        m.kind::task_type, 0, v_now
    FROM unnest(p_messages) WITH ORDINALITY AS m
    WHERE m.constraints IS NULL;

    INSERT INTO schedule (slot, namespace, process_id, task_id, task_type, status, replica_id)
    SELECT m.receiver_slot, m.receiver_namespace, m.receiver_id, p_task_id[m.ordinality],
        m.kind::task_type, 'waiting', p_replica_id
    FROM unnest(p_messages) WITH ORDINALITY AS m
    WHERE m.constraints IS NOT NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN apply_constraints(
        v_now, p_replica_id, p_starvation_timeout,
        array_agg(m.receiver_slot ORDER BY m.ordinality),
        array_agg(m.receiver_namespace ORDER BY m.ordinality),
        array_agg(m.receiver_id ORDER BY m.ordinality),
        array_agg(p_task_id[m.ordinality] ORDER BY m.ordinality),
        array_agg(m.constraints ORDER BY m.ordinality))
    FROM unnest(p_messages) WITH ORDINALITY AS m
    WHERE m.constraints IS NOT NULL;
END;
$$;
