-- Finds the task to try first for a source, which is a released gate or a new line. For a gate with a free
-- place, it is taken from the lines that wait for the gate: from the line whose oldest task has waited longest,
-- if that is longer than p_patience, otherwise from the line with the best head. For a line that waits for no
-- gate, it is the head of the line.
-- Locks: none.
-- Returns: the source with its head; the line is null if no task can be tried.
CREATE FUNCTION find_best_head(
    p_now       timestamptz,
    p_patience  double precision,
    p_namespace text,
    p_gate      text,
    p_line      text
)
RETURNS promoting
STABLE
AS $$
DECLARE
    v_aged_until timestamptz := p_now - make_interval(secs => p_patience);
    v_line       gate_lines%ROWTYPE;
BEGIN
    IF p_gate IS NULL THEN
        SELECT *
        INTO v_line
        FROM gate_lines l
        WHERE (l.namespace, l.line) = (p_namespace, p_line) AND l.waits_on IS NULL;
    ELSIF EXISTS (
        SELECT
        FROM gates g
        WHERE (g.namespace, g.gate) = (p_namespace, p_gate) AND g.held < g.capacity
    ) THEN
        SELECT *
        INTO v_line
        FROM gate_lines l
        WHERE (l.namespace, l.waits_on) = (p_namespace, p_gate) AND l.oldest_at <= v_aged_until
        ORDER BY l.namespace, l.waits_on, l.oldest_at, l.oldest_id
        LIMIT 1;
        IF NOT FOUND THEN
            SELECT *
            INTO v_line
            FROM gate_lines l
            WHERE (l.namespace, l.waits_on) = (p_namespace, p_gate)
            ORDER BY l.namespace, l.waits_on, l.head_priority, l.head_task_id
            LIMIT 1;
        END IF;
    END IF;
    RETURN ROW(
        p_namespace, p_gate, v_line.line,
        CASE WHEN v_line.oldest_at <= v_aged_until THEN v_line.oldest_at END,
        CASE WHEN v_line.oldest_at <= v_aged_until THEN v_line.oldest_id END,
        v_line.head_priority, v_line.head_task_id
    )::promoting;
END;
$$;
