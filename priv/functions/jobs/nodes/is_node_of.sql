-- Tells whether a process carries out the node that it says: the job may be gone, and another be there under its
-- key, whose node is not started or has another process.
-- Locks: none; the caller has locked the process.
-- Returns: whether it does.
CREATE FUNCTION is_node_of(p_follower processes)
RETURNS boolean
STABLE
AS $$
BEGIN
    RETURN EXISTS (
        SELECT
        FROM job_nodes n
        WHERE (n.slot, n.namespace, n.process_id, n.ordinal) = (
                p_follower.leader_slot, p_follower.leader_namespace, p_follower.leader_id,
                p_follower.node)
            AND (n.follower_slot, n.follower_namespace, n.follower_id)
                = (p_follower.slot, p_follower.namespace, p_follower.process_id)
            AND n.state = 'running'
    );
END;
$$;
