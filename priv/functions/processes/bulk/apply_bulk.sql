-- Applies a bulk operation to its next processes and records the result of each, in one transaction: an item without a
-- result has not been applied, and one with a result is not applied again. So each is applied once, whatever ends the
-- replica. An item whose process is locked is left behind: the pass over the items continues, and the next one tries it again,
-- up to p_attempts_max times in all. p_limit: how many items; if 1, what PostgreSQL refuses fails the item.
-- Locks: the operation, against its deletion alone; items, SKIP LOCKED; then their processes, SKIP LOCKED: no waiting, so no order is
-- needed. A process with gates, a job or awaited replies needs more locks, as does one that a task with constraints broke: it
-- is applied alone, and locked as by the function of the single request, for which it waits. Last, the operation for the counts.
-- Returns: a row per item that has a result now or was left behind, with what that function returned; result null: left behind.
CREATE FUNCTION apply_bulk(LIKE own_arguments, p_operation_id text, p_limit integer, p_attempts_max integer)
RETURNS TABLE (
    namespace text, process_id text, result text, removed boolean, leads boolean, cancelled jsonb,
    effects jsonb, error text
)
BY INDEX
SET lock_timeout = '300ms'
AS $$
DECLARE
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_bulk     bulk_operations%ROWTYPE;
    v_item     bulk_items%ROWTYPE;
    v_is_alone boolean;
    v_tried    record;
    v_applied  applied_item;
    v_last     bigint;  -- the last item with a result
    v_left     bigint[] := '{}';  -- the items that are left behind
    v_behind   bigint;  -- the first that the present pass has left behind
    v_next     bigint;  -- the first without a result that it has yet to reach
    v_done     integer := 0;
    v_skipped  integer := 0;
    v_failed   integer := 0;
    v_window   record;
    v_reason   text := '';
    v_state    text;
BEGIN
    SELECT * INTO v_bulk FROM bulk_operations o WHERE o.operation_id = p_operation_id FOR KEY SHARE;
    IF v_bulk.state IS DISTINCT FROM 'running' THEN
        RETURN;
    END IF;
    FOR v_item IN
        SELECT i.*
        FROM bulk_items i
        WHERE i.operation_id = p_operation_id AND i.result IS NULL
            AND i.item >= coalesce(v_bulk.cursor_item, v_bulk.next_item)
        ORDER BY i.operation_id, i.item
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        v_is_alone := (
            SELECT p.is_gated OR p.led_by IS NOT NULL OR p.leader_id IS NOT NULL OR p.has_reply_requests
                OR (
                    SELECT t.constraints IS NOT NULL
                    FROM tasks t
                    WHERE (t.slot, t.namespace, t.process_id, t.task_id)
                        = (p.slot, p.namespace, p.process_id, p.corrupted_by)
                ) IS TRUE
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id) = (v_item.slot, v_item.namespace, v_item.process_id));
        CONTINUE WHEN v_is_alone AND v_last IS NOT NULL;
        error := NULL;
        IF v_is_alone OR p_limit = 1 THEN
            v_tried := try_bulk_item(p_now, p_replica_id, p_starvation_timeout, v_bulk, v_item);
            v_applied := v_tried.applied;
            error := v_tried.error;
        ELSE
            PERFORM
            FROM processes p
            WHERE (p.slot, p.namespace, p.process_id)
                = (v_item.slot, v_item.namespace, v_item.process_id)
            FOR UPDATE SKIP LOCKED;
            -- Null: it does not exist.
            IF FOUND OR v_is_alone IS NULL THEN
                v_applied := apply_bulk_item(p_now, p_replica_id, p_starvation_timeout, v_bulk, v_item);
            ELSE
                v_applied := NULL;
            END IF;
        END IF;
        IF v_applied.result IS NULL AND v_item.attempt_count + 1 >= p_attempts_max THEN
            v_applied := ('failed', 'PROCESS_LOCKED', NULL, NULL, NULL, NULL, NULL)::applied_item;
        END IF;
        UPDATE bulk_items i
        SET result = v_applied.result, reason = v_applied.reason, attempt_count = i.attempt_count + 1,
            ended_at = CASE WHEN v_applied.result IS NOT NULL THEN v_now END,
            task_id = coalesce(v_applied.task_id, i.task_id)
        WHERE i.operation_id = p_operation_id AND i.item = v_item.item;
        IF v_applied.result IS NULL THEN
            v_left := v_left || v_item.item;
        ELSE
            v_last := v_item.item;
        END IF;
        v_done := v_done + (v_applied.result IS NOT DISTINCT FROM 'done')::integer;
        v_skipped := v_skipped + (v_applied.result IS NOT DISTINCT FROM 'skipped')::integer;
        v_failed := v_failed + (v_applied.result IS NOT DISTINCT FROM 'failed')::integer;
        namespace := v_item.namespace;
        process_id := v_item.process_id;
        result := v_applied.result;
        removed := v_applied.removed;
        leads := v_applied.leads;
        cancelled := v_applied.cancelled;
        effects := v_applied.effects;
        RETURN NEXT;
        EXIT WHEN v_is_alone;
    END LOOP;

    v_next := (
        SELECT i.item
        FROM bulk_items i
        WHERE i.operation_id = p_operation_id AND i.result IS NULL AND i.item <> ALL (v_left)
            AND i.item >= coalesce(v_bulk.cursor_item, v_bulk.next_item)
        ORDER BY i.operation_id, i.item
        LIMIT 1);
    v_behind := CASE WHEN v_bulk.cursor_item IS NOT NULL THEN v_bulk.next_item ELSE v_left[1] END;
    IF v_last IS NULL AND v_left = '{}' AND v_next IS NOT NULL THEN
        RETURN;
    END IF;
    IF v_failed > 0 THEN
        SELECT count(*) AS ended, count(*) FILTER (WHERE w.result = 'failed') AS failed
        INTO v_window
        FROM (
            SELECT i.result
            FROM bulk_items i
            WHERE i.operation_id = p_operation_id AND i.item <= v_last AND i.result IS NOT NULL
            ORDER BY i.operation_id DESC, i.item DESC
            LIMIT v_bulk.failed_window
        ) w;
        IF v_window.ended >= v_bulk.failed_window
            AND v_window.failed > v_bulk.failed_share_max * v_window.ended
        THEN
            v_reason := format('%s of the last %s failed', v_window.failed, v_window.ended);
        END IF;
    END IF;
    v_state := CASE
        WHEN v_next IS NULL AND v_behind IS NULL AND NOT v_bulk.follow THEN 'done'
        WHEN v_reason <> '' THEN 'stopped'
        ELSE 'running'
    END;
    UPDATE bulk_operations o
    SET done_count = o.done_count + v_done, skipped_count = o.skipped_count + v_skipped,
        failed_count = o.failed_count + v_failed, updated_at = v_now,
        -- As it was read: items may have been added since.
        next_item = coalesce(v_behind, v_next, v_bulk.matched_count + 1),
        cursor_item = CASE WHEN v_behind IS NOT NULL THEN v_next END,
        state = CASE WHEN o.state = 'running' THEN v_state ELSE o.state END,
        stop_reason = CASE
            WHEN o.state <> 'running' THEN o.stop_reason WHEN v_state = 'stopped' THEN v_reason ELSE ''
        END,
        ended_at = CASE WHEN o.state = 'running' AND v_state <> 'running' THEN v_now ELSE o.ended_at END
    WHERE o.operation_id = p_operation_id;
END;
$$;
