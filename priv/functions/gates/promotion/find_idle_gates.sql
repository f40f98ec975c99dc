-- Finds what the promotion of tasks has missed, or what a replica that died had yet to look at again: gates with
-- free places that queues wait for, queues that wait for nothing, and orders whose smallest version still waits for
-- a smaller one; at most p_limit of these in each namespace. It looks at the p_window queues and orders after
-- p_queue and p_order_key, so that all are seen in turn and a call costs the same whatever waits; but at all queues
-- that wait for nothing: there are none.
-- Returns: what promote_again is to look at, in the form of settle_gates; and how far it has come, null: to the
-- end.
CREATE FUNCTION find_idle_gates(
    p_limit           integer,
    p_window          integer,
    p_namespace       text[],
    p_queue_namespace text,
    p_queue           text,
    p_order_namespace text,
    p_order_key       text
)
RETURNS TABLE (
    effects jsonb, queue_namespace text, queue text, order_namespace text, order_key text
)
STABLE
BY INDEX
AS $$
DECLARE
    v_found      jsonb[];
    v_namespace  text;
    v_queue_room integer := p_window;
    v_order_room integer := p_window;
    v_after      text;
    v_window     record;
BEGIN
    FOR v_namespace IN
        SELECT n.name
        FROM unnest(p_namespace) AS n (name)
        ORDER BY n.name
    LOOP
        v_found := v_found || ARRAY(
            SELECT jsonb_build_array(v_namespace, NULL, NULL, NULL, l.queue)
            FROM gate_queues l
            WHERE l.namespace = v_namespace AND l.waits_on IS NULL
            LIMIT p_limit);

        IF v_queue_room > 0 AND v_namespace >= p_queue_namespace THEN
            v_after := CASE WHEN v_namespace = p_queue_namespace THEN p_queue ELSE '' END;
            SELECT count(*) AS count, max(w.queue) AS last,
                array_agg(DISTINCT w.waits_on) FILTER (WHERE w.has_place) AS gates
            INTO v_window
            FROM (
                SELECT l.queue, l.waits_on, (
                    SELECT g.held < g.capacity
                    FROM gates g
                    WHERE (g.namespace, g.gate) = (l.namespace, l.waits_on)
                ) AS has_place
                FROM (
                    SELECT l.namespace, l.queue, l.waits_on
                    FROM gate_queues l
                    WHERE l.namespace = v_namespace AND l.queue > v_after
                    ORDER BY l.namespace, l.queue
                    LIMIT v_queue_room
                ) l
            ) w;
            v_found := v_found || ARRAY(
                SELECT jsonb_build_array(v_namespace, NULL, NULL, g.gate)
                FROM unnest(v_window.gates) AS g (gate));
            v_queue_room := v_queue_room - v_window.count;
            IF v_queue_room = 0 THEN
                queue_namespace := v_namespace;
                queue := v_window.last;
            END IF;
        END IF;

        IF v_order_room > 0 AND v_namespace >= p_order_namespace THEN
            v_after := CASE WHEN v_namespace = p_order_namespace THEN p_order_key ELSE '' END;
            WITH RECURSIVE smallest AS (
                (SELECT g.order_key, g.order_version, 1 AS place
                FROM gated g
                WHERE g.namespace = v_namespace AND g.order_key > v_after
                ORDER BY g.namespace, g.order_key, g.order_version
                LIMIT 1)
                UNION ALL
                SELECT n.order_key, n.order_version, s.place + 1
                FROM smallest s
                CROSS JOIN LATERAL (
                    SELECT g.order_key, g.order_version
                    FROM gated g
                    WHERE g.namespace = v_namespace AND g.order_key > s.order_key
                    ORDER BY g.namespace, g.order_key, g.order_version
                    LIMIT 1
                ) n
                WHERE s.place < v_order_room
            )
            SELECT count(*) AS count, max(w.order_key) AS last,
                array_agg(w.order_key) FILTER (WHERE w.waits) AS orders
            INTO v_window
            FROM (
                -- Not EXISTS, which would become a join that reads all that wait for an order.
                SELECT s.order_key, (
                    SELECT true
                    FROM gated g
                    WHERE (g.namespace, g.order_key, g.order_version)
                            = (v_namespace, s.order_key, s.order_version)
                        AND g.state = 'order'
                    LIMIT 1
                ) AS waits
                FROM smallest s
            ) w;
            v_found := v_found || ARRAY(
                SELECT jsonb_build_array(v_namespace, NULL, NULL, NULL, NULL, o.order_key)
                FROM unnest(v_window.orders) AS o (order_key));
            v_order_room := v_order_room - v_window.count;
            IF v_order_room = 0 THEN
                order_namespace := v_namespace;
                order_key := v_window.last;
            END IF;
        END IF;
    END LOOP;
    effects := to_jsonb(v_found);
    RETURN NEXT;
END;
$$;
