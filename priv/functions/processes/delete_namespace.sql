-- Deletes a namespace without processes, with its gates, orders, schedules and runs, in one statement: a replica that
-- freezes leaves no lock behind.
-- Locks: its schedules, in key order, since a run locks its schedule before it starts processes; then the table of
-- processes, which keeps new ones out until the namespace is gone. Waits for each for 2 s at most.
-- Returns: deleted, not_found or not_empty.
CREATE FUNCTION delete_namespace(p_name text, p_audit text, OUT verdict text)
BY INDEX
SET lock_timeout = '2s'
AS $$
DECLARE
    v_config jsonb;
BEGIN
    PERFORM
    FROM schedules s
    WHERE s.namespace = p_name
    ORDER BY s.slot, s.namespace, s.schedule_id
    FOR UPDATE;

    LOCK TABLE processes IN SHARE ROW EXCLUSIVE MODE;

    -- With the collation and in the order of processes_by_creation: the primary key begins with the
    -- slot, and would be read whole.
    PERFORM
    FROM processes p
    WHERE p.namespace COLLATE "POSIX" = p_name
    ORDER BY p.namespace COLLATE "POSIX", p.created_at DESC, p.process_id COLLATE "POSIX" DESC
    LIMIT 1;
    IF FOUND THEN
        verdict := 'not_empty';
        RETURN;
    END IF;

    DELETE FROM namespaces n WHERE n.name = p_name RETURNING n.config INTO v_config;
    IF NOT FOUND THEN
        verdict := 'not_found';
        RETURN;
    END IF;

    -- Its gates have no holders, since it has no processes.
    DELETE FROM gates g WHERE g.namespace = p_name;
    DELETE FROM orders o WHERE o.namespace = p_name;
    -- Rows of new_failures that are left are dropped when they are added up.
    DELETE FROM failures f WHERE f.namespace = p_name;
    DELETE FROM schedule_runs f
    USING schedules s
    WHERE s.namespace = p_name
        AND (f.slot, f.namespace, f.schedule_id) = (s.slot, s.namespace, s.schedule_id);
    DELETE FROM schedules s WHERE s.namespace = p_name;
    PERFORM write_audit(p_audit, v_config, NULL);
    verdict := 'deleted';
END;
$$;
