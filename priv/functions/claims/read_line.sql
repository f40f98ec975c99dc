-- Reads the calls and notifies that wait behind the running task of a process, in the order in which they run, up to
-- the first that must be asked alone: one that has begun before, or asks for a history or a timeout of its own. A process
-- with gates, or to whose tasks other processes want replies, has none: its settlements bring about more.
-- Locks: none; settle_turns decides.
-- Returns: the tasks as they would begin now. The token of each is that of the lease that it may get, greater than that
-- of the task before it.
CREATE FUNCTION read_line(
    p_now        timestamptz,
    p_slot       smallint,
    p_namespace  text,
    p_process_id text,
    p_count      integer,
    p_bytes_max  integer
)
RETURNS TABLE (
    task_id bigint, task_type task_type, attempt integer, token bigint, args bytea,
    caller_context json, trace_context json, history_after bigint, history_limit integer,
    history_backward boolean, step_timeout double precision, scheduled_at timestamptz,
    first_started_at timestamptz, sender json
)
BY ITEM
AS $$
BEGIN
    RETURN QUERY
    SELECT w.task_id, w.task_type, 1, nextval('lease_tokens'), w.args, w.caller_context, w.trace_context,
        NULL::bigint, NULL::integer, NULL::boolean, NULL::double precision, w.now, w.now, w.sender
    FROM (
        SELECT s.task_id, s.task_type, t.args, t.caller_context, t.trace_context, t.sender,
            coalesce(p_now, clock_timestamp()) AS now,
            bool_and(s.task_type IN ('call', 'notify') AND s.attempt = 0 AND t.has_memos IS NOT TRUE
                AND t.history_limit IS NULL AND t.history_after IS NULL
                AND t.history_backward IS NULL AND t.step_timeout IS NULL)
                OVER before AS is_plain,
            sum(octet_length(t.args)) OVER before AS size
        FROM (
            SELECT s.task_id, s.task_type, s.attempt
            FROM schedule s
            WHERE (s.slot, s.namespace, s.process_id) = (p_slot, p_namespace, p_process_id)
                AND s.task_type NOT IN ('timeout', 'remove')
                AND EXISTS (
                    SELECT
                    FROM processes p
                    WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
                        AND NOT (p.is_gated OR p.has_reply_requests)
                )
            ORDER BY s.slot, s.namespace, s.process_id, s.task_id
            LIMIT p_count
        ) s
        CROSS JOIN LATERAL (
            SELECT t.*
            FROM tasks t
            WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                = (p_slot, p_namespace, p_process_id, s.task_id)
            OFFSET 0
        ) t
        WINDOW before AS (ORDER BY s.task_id)
    ) w
    WHERE w.is_plain AND w.size <= p_bytes_max
    ORDER BY w.task_id;
END;
$$;
