-- Finds nodes that run although their followers have ended, or are gone: what became of them.
-- Returns: those nodes, with how they are to end.
CREATE FUNCTION find_stuck_nodes(p_slot smallint, p_namespace text, p_process_id text)
RETURNS TABLE (
    slot smallint, namespace text, process_id text, ordinal integer, state node_state,
    result bytea, message text
)
STABLE
BY ITEM
AS $$
BEGIN
    RETURN QUERY
    SELECT n.slot, n.namespace, n.process_id, n.ordinal,
        CASE WHEN p.status = 'finished' THEN 'done' ELSE 'failed' END::node_state, p.result,
        CASE WHEN p.status IS NULL THEN 'its process is gone' ELSE p.detail END
    FROM job_nodes n
    LEFT JOIN LATERAL find_process(n.follower_slot, n.follower_namespace, n.follower_id) p
        ON (p.leader_slot, p.leader_namespace, p.leader_id, p.node)
            = (n.slot, n.namespace, n.process_id, n.ordinal)
    WHERE (n.slot, n.namespace, n.process_id) = (p_slot, p_namespace, p_process_id)
        AND n.state = 'running'
        AND (p.status IS NULL OR p.status IN ('finished', 'error'));
END;
$$;
