-- Takes the locks of a process, the leader of the job that it follows in, and followers of its own, in key order.
-- Whom it follows never changes, so that it can be looked up before.
-- Locks: these; nothing else before.
-- Returns: the process as it is under the lock; nulls if it does not exist; one that is created later is not locked.
CREATE FUNCTION lock_with_leader(
    p_slot               smallint,
    p_namespace          text,
    p_process_id         text,
    p_follower_slot      smallint[] DEFAULT NULL,
    p_follower_namespace text[] DEFAULT NULL,
    p_follower_id        text[] DEFAULT NULL
)
RETURNS processes
AS $$
DECLARE
    v_is_there boolean;
    v_process  processes%ROWTYPE;
BEGIN
    SELECT bool_or((p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id))
    INTO v_is_there
    FROM (
        SELECT k.slot, k.namespace, k.process_id
        FROM (
            SELECT p_slot AS slot, p_namespace AS namespace, p_process_id AS process_id
            UNION
            SELECT p.leader_slot, p.leader_namespace, p.leader_id
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
                AND p.leader_id IS NOT NULL
            UNION
            SELECT f.slot, f.namespace, f.process_id
            FROM unnest(p_follower_slot, p_follower_namespace, p_follower_id)
                AS f (slot, namespace, process_id)
        ) k
        ORDER BY k.slot, k.namespace, k.process_id
    ) k
    CROSS JOIN LATERAL (
        SELECT p.slot, p.namespace, p.process_id
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (k.slot, k.namespace, k.process_id)
        FOR UPDATE
    ) p;
    IF v_is_there THEN
        SELECT p.*
        INTO v_process
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id);
    END IF;
    RETURN v_process;
END;
$$;
