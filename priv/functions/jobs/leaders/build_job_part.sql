-- A process's part in jobs as one column: null for a process that has none.
-- Returns: [led_by, leader_slot, leader_namespace, leader_id, node, options], or null.
CREATE FUNCTION build_job_part(
    p_led_by           text,
    p_leader_slot      smallint,
    p_leader_namespace text,
    p_leader_id        text,
    p_node             integer,
    p_options          json
)
RETURNS json
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_led_by IS NOT NULL OR p_leader_id IS NOT NULL OR p_options IS NOT NULL THEN
        json_build_array(
            p_led_by, p_leader_slot, p_leader_namespace, p_leader_id, p_node, p_options)
    END
$$;
