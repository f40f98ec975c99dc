-- Reads the changes of timers that a step, or an import, has in JSON: [{"name", "type": a task type or "unset", "at"
-- or "after" (seconds), "args" (base64), "trace", "timeout", "history_after", "history_limit", "history_backward",
-- "constraints"}, ...]. A new timer gets its task id here.
-- Locks: none.
-- Returns: them, in their order.
CREATE FUNCTION read_timer_changes(
    p_now timestamptz, p_item integer, p_slot smallint, p_namespace text, p_process_id text, p_changes json
)
RETURNS SETOF timer_change
AS $$
BEGIN
    RETURN QUERY
    SELECT p_item, p_slot, p_namespace, p_process_id, c.name,
        CASE WHEN c.type <> 'unset' THEN nextval('task_ids') END, nullif(c.type, 'unset')::task_type,
        coalesce(c.at, p_now + make_interval(secs => c.after)),
        coalesce(decode(c.args, 'base64'), ''), c.trace, make_interval(secs => c.timeout),
        c.history_after, c.history_limit, c.history_backward, c.constraints
    FROM json_to_recordset(p_changes) AS c (
        name text, type text, at timestamptz, after double precision, args text, trace json,
        timeout double precision, history_after bigint, history_limit integer,
        history_backward boolean, constraints json
    );
END;
$$;
