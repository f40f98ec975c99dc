-- Claims tasks by their ids: those that this replica knows to be due. If p_wait, it waits for the locks of their
-- processes, since the lock holder may be about to postpone the task or leave it to us; otherwise it skips them.
-- p_ahead: as claim_locked.
-- Locks: processes in key order, SKIP LOCKED unless p_wait, and then also schedule and tasks, which others may hold
-- locked without the process; then as claim_locked.
-- Returns: as claim_locked; a task that is gone, blocked, put off or taken is left out.
CREATE FUNCTION claim_tasks(
    p_now           timestamptz,
    p_replica_id    bigint,
    p_grace         double precision,
    p_wait          boolean,
    p_slot          smallint[],
    p_namespace     text[],
    p_process_id    text[],
    p_task_id       bigint[],
    p_expires_after double precision[],
    p_ahead         double precision
)
RETURNS SETOF claimed
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_task_id bigint[];
BEGIN
    IF p_wait THEN
        v_task_id := p_task_id;
        PERFORM
        FROM (
            SELECT i.slot, i.namespace, i.process_id
            FROM unnest(p_slot, p_namespace, p_process_id) AS i (slot, namespace, process_id)
            ORDER BY i.slot, i.namespace, i.process_id
        ) i
        CROSS JOIN LATERAL (
            SELECT
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
            FOR NO KEY UPDATE
        ) p;
    ELSE
        -- Of what was passed over, the task is null, and no task is found by that.
        WITH locked AS (
            SELECT i.item
            FROM (
                SELECT i.*
                FROM unnest(p_slot, p_namespace, p_process_id, p_task_id) WITH ORDINALITY
                    AS i (slot, namespace, process_id, task_id, item)
                ORDER BY i.slot, i.namespace, i.process_id
            ) i
            CROSS JOIN LATERAL (
                SELECT
                FROM processes p
                WHERE (p.slot, p.namespace, p.process_id) = (i.slot, i.namespace, i.process_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) p
            CROSS JOIN LATERAL (
                SELECT
                FROM schedule s
                WHERE (s.slot, s.namespace, s.process_id, s.task_id)
                    = (i.slot, i.namespace, i.process_id, i.task_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) s
            CROSS JOIN LATERAL (
                SELECT
                FROM tasks t
                WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                    = (i.slot, i.namespace, i.process_id, i.task_id)
                FOR NO KEY UPDATE SKIP LOCKED
            ) t
        )
        SELECT array_agg(CASE WHEN l.item IS NOT NULL THEN i.task_id END ORDER BY i.item)
        INTO v_task_id
        FROM unnest(p_task_id) WITH ORDINALITY AS i (task_id, item)
        LEFT JOIN locked l USING (item);
    END IF;

    RETURN QUERY
    SELECT * FROM claim_locked(
        coalesce(p_now, clock_timestamp()), p_replica_id, p_grace, p_slot, p_namespace,
        p_process_id, v_task_id, p_expires_after, p_ahead);
END;
$$;
