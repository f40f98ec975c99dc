-- Fails the jobs of those items of settle_job_tasks whose replica was lost: that which the process leads, and that
-- in which it follows. An item that has lost its own lease meanwhile fails none.
-- Locks: none of its own; settle_job_tasks has locked the processes and their leaders.
-- Returns: as fail_jobs.
CREATE FUNCTION fail_lost_jobs(
    LIKE own_arguments,
    p_fails_job        boolean[],
    p_slot             smallint[],
    p_namespace        text[],
    p_process_id       text[],
    p_token            bigint[],
    p_leads            boolean[],
    p_leader_slot      smallint[],
    p_leader_namespace text[],
    p_leader_id        text[],
    p_node             integer[]
)
RETURNS halted
BY ITEM
AS $$
DECLARE
    v_item   integer;
    v_name   text;
    v_halted halted;
BEGIN
    FOR v_item IN
        SELECT i.item::integer
        FROM unnest(p_fails_job) WITH ORDINALITY AS i (fails, item)
        CROSS JOIN LATERAL (
            SELECT r.token
            FROM running r
            WHERE (r.slot, r.namespace, r.process_id)
                = (p_slot[i.item], p_namespace[i.item], p_process_id[i.item])
            OFFSET 0
        ) r
        WHERE i.fails AND r.token = p_token[i.item]
    LOOP
        -- The settlement breaks the leader itself.
        IF p_leads[v_item] THEN
            PERFORM end_jobs(
                p_now,
                ARRAY[(p_slot[v_item], p_namespace[v_item], p_process_id[v_item])::process_key],
                'failed', ARRAY['ZOMBIE: the replica of its leader was lost'], ARRAY[true]);
        END IF;
        IF p_leader_id[v_item] IS NOT NULL THEN
            SELECT n.name
            INTO v_name
            FROM job_nodes n
            WHERE (n.slot, n.namespace, n.process_id, n.ordinal) = (
                    p_leader_slot[v_item], p_leader_namespace[v_item], p_leader_id[v_item],
                    p_node[v_item])
                AND (n.follower_slot, n.follower_namespace, n.follower_id)
                    = (p_slot[v_item], p_namespace[v_item], p_process_id[v_item])
                AND n.state = 'running';
            IF FOUND THEN
                v_halted := merge_halted(v_halted, fail_jobs(
                    p_now, p_replica_id, p_starvation_timeout, ARRAY[(
                        p_leader_slot[v_item], p_leader_namespace[v_item],
                        p_leader_id[v_item])::process_key],
                    ARRAY[format('ZOMBIE: the replica of node "%s" was lost', v_name)]));
            END IF;
        END IF;
    END LOOP;
    RETURN v_halted;
END;
$$;
