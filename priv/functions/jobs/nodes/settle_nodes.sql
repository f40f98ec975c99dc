-- Moves the nodes of those followers whose tasks settle_job_tasks has settled: a follower that has ended ends its
-- node; one that a repair has brought back begins its node anew; one that goes on has begun; one whose job has
-- ended meanwhile is stopped.
-- Locks: none of its own; settle_job_tasks has locked the followers and their leaders.
-- Returns: of those that were stopped, what stop_nodes returns; with the effects of reopen_node.
CREATE FUNCTION settle_nodes(
    LIKE own_arguments,
    p_settled          boolean[],
    p_statuses         process_status[],
    p_stopped          integer[],
    p_slot             smallint[],
    p_namespace        text[],
    p_process_id       text[],
    p_outcome          text[],
    p_response         bytea[],
    p_result           bytea[],
    p_error_code       integer[],
    p_error_reason     text[],
    p_error_message    text[],
    p_leader_slot      smallint[],
    p_leader_namespace text[],
    p_leader_id        text[],
    p_node             integer[],
    p_replica          bigint[]  -- that had the lease
)
RETURNS halted
BY ITEM
AS $$
DECLARE
    v_ended   integer[];
    v_states  node_state[];
    v_begun   integer[];
    v_revived integer[];
    v_effects jsonb;  -- of leaders that come back with their followers
    v_stopped halted;
    v_process processes%ROWTYPE;
BEGIN
    -- A process may bear the name of a job that is gone, while another job has its name: what is not of
    -- a node that runs by this process is left alone.
    SELECT array_agg(i.item) FILTER (
            WHERE (i.was = 'running' AND i.ends)
                OR (i.was_broken AND i.status = 'finished')),
        array_agg(i.state) FILTER (
            WHERE (i.was = 'running' AND i.ends)
                OR (i.was_broken AND i.status = 'finished')),
        array_agg(i.item) FILTER (WHERE NOT i.ends AND i.was = 'running' AND NOT i.begun),
        array_agg(i.item) FILTER (
            WHERE i.was_broken AND i.status IN ('running', 'finished'))
    INTO v_ended, v_states, v_begun, v_revived
    FROM (
        SELECT i.item, n.state AS was, n.begun, i.status,
            n.state IN ('failed', 'cancelled') OR (n.state = 'ready' AND n.started_at IS NOT NULL)
                AS was_broken,
            coalesce(i.status IN ('finished', 'error'), true) AS ends,
            CASE
                WHEN i.status = 'finished'
                    OR (i.status IS NULL AND p_error_code[i.item] IS NULL) THEN 'done'
                ELSE 'failed'
            END::node_state AS state
        FROM (
            -- By subscripts: where the first items have lost their leases, the array of statuses
            -- begins later than the others.
            SELECT n.item::integer, n.node, p_statuses[n.item] AS status
            FROM unnest(p_node) WITH ORDINALITY AS n (node, item)
        ) i
        JOIN LATERAL find_node(
            p_leader_slot[i.item], p_leader_namespace[i.item], p_leader_id[i.item], i.node) n
            ON (n.follower_slot, n.follower_namespace, n.follower_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
        WHERE i.node IS NOT NULL AND p_settled[i.item]
    ) i;

    IF v_revived IS NOT NULL THEN
        FOR v_process IN
            SELECT p.*
            FROM unnest(v_revived) AS i (item)
            JOIN processes p
                ON (p.slot, p.namespace, p.process_id)
                    = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
        LOOP
            v_effects := merge_json(v_effects, reopen_node(
                p_now, p_replica_id, p_starvation_timeout, v_process));
        END LOOP;
    END IF;

    IF v_ended IS NOT NULL THEN
        PERFORM end_nodes(
            p_now, p_replica_id, array_agg((
                p_leader_slot[i.item], p_leader_namespace[i.item],
                p_leader_id[i.item])::process_key),
            array_agg(p_node[i.item]), v_states,
            -- A removal has no result except the response its caller got.
            array_agg(coalesce(p_result[i.item],
                CASE WHEN p_outcome[i.item] = 'remove' THEN p_response[i.item] END)),
            array_agg(p_error_code[i.item]), array_agg(p_error_reason[i.item]),
            array_agg(p_error_message[i.item]), array_agg(p_replica[i.item]))
        FROM unnest(v_ended) AS i (item);
    END IF;

    IF v_begun IS NOT NULL THEN
        UPDATE job_nodes n
        SET begun = true, replica_id = coalesce(i.replica_id, n.replica_id), updated_at = p_now
        FROM (
            SELECT n.slot, n.node_row, p_replica[i.item] AS replica_id
            FROM unnest(v_begun) AS i (item)
            CROSS JOIN LATERAL find_node(
                p_leader_slot[i.item], p_leader_namespace[i.item], p_leader_id[i.item], p_node[i.item]) n
            OFFSET 0
        ) i
        WHERE n.ctid = i.node_row AND n.slot BETWEEN i.slot AND i.slot;
        UPDATE jobs j
        SET beginning = j.beginning - c.count
        FROM (
            SELECT j.slot, j.job_row, c.count
            FROM (
                SELECT p_leader_slot[i.item] AS slot, p_leader_namespace[i.item] AS namespace,
                    p_leader_id[i.item] AS process_id, count(*) AS count
                FROM unnest(v_begun) AS i (item)
                GROUP BY 1, 2, 3
            ) c
            CROSS JOIN LATERAL find_job(c.slot, c.namespace, c.process_id) j
            OFFSET 0
        ) c
        WHERE j.ctid = c.job_row AND j.slot BETWEEN c.slot AND c.slot;
    END IF;

    IF p_stopped IS NOT NULL THEN
        v_stopped := (
            SELECT stop_nodes(
                p_now, p_replica_id, p_starvation_timeout, array_agg((
                    p_leader_slot[i.item], p_leader_namespace[i.item],
                    p_leader_id[i.item])::process_key),
                array_agg(p_node[i.item]))
            FROM unnest(p_stopped) AS i (item)
            WHERE p_settled[i.item]
        );
    END IF;
    v_stopped.effects := merge_json(v_effects, v_stopped.effects);
    RETURN v_stopped;
END;
$$;
