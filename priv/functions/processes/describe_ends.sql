-- Describes processes that end, or break, to the replicas where callers wait for that.
-- Locks: none; the caller has locked the processes.
-- Returns: an effect of settle_gates for each that is awaited; null: none is.
CREATE FUNCTION describe_ends(p_key process_key[])
RETURNS jsonb
STABLE
BY ITEM
AS $$
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_array(
            p.namespace, p.process_id, p.init_task_id, NULL, NULL, NULL, NULL, NULL, p.awaited_by))
        FROM unnest(p_key) AS k
        JOIN processes p USING (slot, namespace, process_id)
        WHERE p.awaited_by IS NOT NULL
    );
END;
$$;
