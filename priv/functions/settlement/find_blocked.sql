-- Finds the items of a batch that need a row locked by another transaction, after find_locked has found none: a row
-- of a process or its leader, or a gate or an order that the process holds or wants. It never waits for a lock.
-- p_row: the table and the ctid of the row that a statement waited for, from the context of PostgreSQL's error;
-- empty if it is not named there. w_*: gates and orders that items are about to want.
-- Locks: the other gates and orders, with SKIP LOCKED, until the function returns.
-- Returns: the items, from 1, each once, and the row that each waits for: items that wait for the same row are
-- written together once it is unlocked.
CREATE FUNCTION find_blocked(
    p_row        text[],
    p_slot       smallint[],
    p_namespace  text[],
    p_process_id text[],
    w_item       integer[],
    w_gate       text[],
    w_order      text[]
)
RETURNS TABLE (item integer, reason text)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_name     text;  -- of the table, also where the row is in a partition of it
    v_table    regclass := to_regclass(quote_ident(p_row[1]));
    v_is_found boolean;
BEGIN
    -- Only the locks are written to the WAL, so the commit need not wait for a disk or a standby.
    PERFORM set_config('synchronous_commit', 'off', true);

    v_name := coalesce((
        SELECT c.relname
        FROM pg_inherits h
        JOIN pg_class c ON c.oid = h.inhparent
        WHERE h.inhrelid = v_table), p_row[1]);

    -- A session that waits for an insertion of the same key gets the index in its error.
    IF 3 = (
        SELECT count(*)
        FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid
        WHERE a.attrelid = v_table
            AND c.relkind = 'r'
            AND a.attname IN ('slot', 'namespace', 'process_id')
    ) THEN
        RETURN QUERY EXECUTE format(
            'SELECT DISTINCT i.item::integer, concat_ws('' '', $4, t.slot, t.namespace, t.process_id)
            FROM %s t
            JOIN unnest($1, $2, $3) WITH ORDINALITY AS i (slot, namespace, process_id, item) ON true
            WHERE t.ctid = $5::tid
                AND (
                    (i.slot, i.namespace, i.process_id) = (t.slot, t.namespace, t.process_id)
                    OR (t.slot, t.namespace, t.process_id) = (
                        SELECT p.leader_slot, p.leader_namespace, p.leader_id
                        FROM processes p
                        WHERE (p.slot, p.namespace, p.process_id)
                            = (i.slot, i.namespace, i.process_id)
                    )
                )',
            v_table
        ) USING p_slot, p_namespace, p_process_id, v_name, p_row[2];
        v_is_found := FOUND;
        -- Others of the batch may wait for rows of the same table. Of tasks and events there may be too
        -- many to look at; of tasks those are changed that run, or come next.
        IF v_name IN ('running', 'schedule', 'gated', 'gate_holders') THEN
            RETURN QUERY EXECUTE format(
                'WITH free AS MATERIALIZED (
                    SELECT t.*
                    FROM unnest($1, $2, $3) AS i (slot, namespace, process_id)
                    CROSS JOIN LATERAL (
                        SELECT t.tableoid, t.ctid
                        FROM %1$s t
                        WHERE (t.slot, t.namespace, t.process_id)
                            = (i.slot, i.namespace, i.process_id)
                        FOR NO KEY UPDATE SKIP LOCKED
                    ) t
                )
                SELECT DISTINCT i.item::integer, concat_ws('' '', $4, slot, namespace, process_id)
                FROM unnest($1, $2, $3) WITH ORDINALITY AS i (slot, namespace, process_id, item)
                JOIN %1$s t USING (slot, namespace, process_id)
                WHERE (t.tableoid, t.ctid) NOT IN (SELECT * FROM free)',
                v_name
            ) USING p_slot, p_namespace, p_process_id, v_name;
            v_is_found := v_is_found OR FOUND;
        ELSIF v_name = 'tasks' THEN
            RETURN QUERY
            WITH near AS MATERIALIZED (
                SELECT i.*, n.task_id
                FROM unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
                    AS i (slot, namespace, process_id, item)
                CROSS JOIN LATERAL (
                    SELECT r.task_id
                    FROM running r
                    WHERE (r.slot, r.namespace, r.process_id)
                        = (i.slot, i.namespace, i.process_id)
                    UNION ALL
                    (SELECT s.task_id
                    FROM schedule s
                    WHERE (s.slot, s.namespace, s.process_id)
                        = (i.slot, i.namespace, i.process_id)
                    ORDER BY s.slot, s.namespace, s.process_id, s.task_id
                    LIMIT 10)
                ) n
            ),
            free AS MATERIALIZED (
                SELECT t.*
                FROM near n
                CROSS JOIN LATERAL (
                    SELECT t.tableoid, t.ctid
                    FROM tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (n.slot, n.namespace, n.process_id, n.task_id)
                    FOR NO KEY UPDATE SKIP LOCKED
                ) t
            )
            SELECT DISTINCT n.item::integer,
                concat_ws(' ', 'tasks', n.slot, n.namespace, n.process_id)
            FROM near n
            JOIN tasks t USING (slot, namespace, process_id, task_id)
            WHERE (t.tableoid, t.ctid) NOT IN (SELECT * FROM free);
            v_is_found := v_is_found OR FOUND;
        END IF;
        IF v_is_found THEN
            RETURN;
        END IF;
    ELSIF p_row[1] = 'gate_queues' THEN
        RETURN QUERY
        SELECT DISTINCT i.item::integer, 'queue ' || l.namespace || '/' || l.queue
        FROM gate_queues l
        JOIN unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
            AS i (slot, namespace, process_id, item) USING (namespace)
        WHERE l.ctid = p_row[2]::tid
            AND l.gates && ARRAY(
                SELECT h.gate
                FROM gate_holders h
                WHERE (h.slot, h.namespace, h.process_id) = (i.slot, i.namespace, i.process_id)
                UNION ALL
                SELECT unnest(g.gates)
                FROM gated g
                WHERE (g.slot, g.namespace, g.process_id) = (i.slot, i.namespace, i.process_id)
                UNION ALL
                SELECT w.gate
                FROM unnest(w_item, w_gate) AS w (item, gate)
                WHERE w.item = i.item AND w.gate IS NOT NULL
            );
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    RETURN QUERY
    SELECT *
    FROM find_held(
        ARRAY(
            SELECT (i.slot, i.namespace, i.process_id)::process_key
            FROM unnest(p_slot, p_namespace, p_process_id) WITH ORDINALITY
                AS i (slot, namespace, process_id, item)
            ORDER BY i.item),
        w_item, w_gate, w_order);
END;
$$;
