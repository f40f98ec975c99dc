-- Fails jobs whose deadline has passed: the leader breaks, whatever it has in hand, and its followers are
-- stopped by maintain_job. A locked one is left to the next call.
-- Locks: the leaders, and the leaders of the jobs that these follow in, in key order; then as
-- halt_processes and start_nodes.
-- Returns: the keys of the jobs that failed; the tasks of their leaders that were cancelled, with their keys; and
-- the effects, as settle_gates_batch returns them.
CREATE FUNCTION fail_overdue_jobs(
    p_now                timestamptz,
    p_replica_id         bigint,
    p_starvation_timeout double precision,
    p_limit              integer,
    OUT failed    jsonb,
    OUT cancelled jsonb,
    OUT effects   jsonb
)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_slots  smallint[];
    v_spaces text[];
    v_ids    text[];
    v_leader processes%ROWTYPE;
    v_halted record;
    v_due    jsonb;
BEGIN
    SELECT array_agg(j.slot), array_agg(j.namespace), array_agg(j.process_id)
    INTO v_slots, v_spaces, v_ids
    FROM (
        SELECT j.slot, j.namespace, j.process_id
        FROM jobs j
        WHERE j.state = 'running' AND j.deadline_at <= v_now
        ORDER BY j.deadline_at
        LIMIT p_limit
    ) j;
    IF v_slots IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM
        FROM (
            SELECT k.slot, k.namespace, k.process_id
            FROM (
                SELECT i.slot, i.namespace, i.process_id
                FROM unnest(v_slots, v_spaces, v_ids) AS i (slot, namespace, process_id)
                UNION
                SELECT p.leader_slot, p.leader_namespace, p.leader_id
                FROM unnest(v_slots, v_spaces, v_ids) AS i (slot, namespace, process_id)
                JOIN processes p USING (slot, namespace, process_id)
                WHERE p.leader_id IS NOT NULL
            ) k
            ORDER BY k.slot, k.namespace, k.process_id
        ) k
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
            FOR NO KEY UPDATE
        ) p;
    EXCEPTION WHEN lock_not_available THEN
        -- One of them is locked: process the others without it, and without what it leads or follows.
        WITH wanted AS MATERIALIZED (
            SELECT p.slot, p.namespace, p.process_id, p.leader_slot, p.leader_namespace,
                p.leader_id
            FROM unnest(v_slots, v_spaces, v_ids) AS i (slot, namespace, process_id)
            JOIN processes p USING (slot, namespace, process_id)
        ),
        family AS MATERIALIZED (
            SELECT w.slot, w.namespace, w.process_id
            FROM wanted w
            UNION
            SELECT p.slot, p.namespace, p.process_id
            FROM wanted w
            JOIN processes p
                ON (p.slot, p.namespace, p.process_id)
                    = (w.leader_slot, w.leader_namespace, w.leader_id)
        ),
        locked AS MATERIALIZED (
            SELECT f.*
            FROM family f
            CROSS JOIN LATERAL (
                SELECT
                FROM processes p
                WHERE (p.slot, p.namespace, p.process_id)
                    = (f.slot, f.namespace, f.process_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) p
        ),
        held AS MATERIALIZED (
            SELECT * FROM family
            EXCEPT
            SELECT * FROM locked
        )
        SELECT array_agg(w.slot), array_agg(w.namespace), array_agg(w.process_id)
        INTO v_slots, v_spaces, v_ids
        FROM wanted w
        WHERE NOT EXISTS (
            SELECT
            FROM held h
            WHERE (h.slot, h.namespace, h.process_id) IN (
                (w.slot, w.namespace, w.process_id),
                (w.leader_slot, w.leader_namespace, w.leader_id)
            )
        );
    END;

    FOR v_leader IN
        SELECT p.*
        FROM unnest(v_slots, v_spaces, v_ids) AS i (slot, namespace, process_id)
        JOIN jobs j USING (slot, namespace, process_id)
        JOIN processes p USING (slot, namespace, process_id)
        WHERE j.state = 'running' AND j.deadline_at <= v_now
    LOOP
        PERFORM end_jobs(
            v_now, ARRAY[v_leader.slot], ARRAY[v_leader.namespace], ARRAY[v_leader.process_id],
            ARRAY['failed'::job_state], ARRAY['DEADLINE_EXCEEDED']);
        failed := coalesce(failed, '[]') || jsonb_build_array(jsonb_build_array(
            v_leader.slot, v_leader.namespace, v_leader.process_id));
        FOR v_halted IN
            SELECT *
            FROM halt_processes(
                v_now, p_replica_id, p_starvation_timeout, 'error', ARRAY[v_leader.slot],
                ARRAY[v_leader.namespace], ARRAY[v_leader.process_id],
                ARRAY['DEADLINE_EXCEEDED'])
        LOOP
            IF v_halted.cancelled IS NOT NULL THEN
                cancelled := coalesce(cancelled, '[]') || jsonb_build_array(jsonb_build_array(
                    v_leader.slot, v_leader.namespace, v_leader.process_id, v_halted.cancelled));
            END IF;
            effects := coalesce(effects || v_halted.effects, effects, v_halted.effects);
        END LOOP;
        IF v_leader.leader_id IS NOT NULL THEN
            SELECT jsonb_agg(jsonb_build_array(
                f.namespace, f.process_id, f.task_id, NULL, NULL, NULL, NULL, NULL))
            INTO v_due
            FROM fail_node(
                v_now, p_replica_id, v_leader, 'DEADLINE_EXCEEDED',
                'the deadline of its job has passed') f;
            effects := coalesce(effects || v_due, effects, v_due);
        END IF;
    END LOOP;
END;
$$;
