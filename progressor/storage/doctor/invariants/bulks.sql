-- The invariants of bulk operations; see processes.sql for what holds for all of them.

-- name: bulk_operations_have_a_task
-- says: a bulk operation that has not ended has a task, unless its process has
-- Each of its steps ends with a timer for the next, in the transaction of the settlement.
SELECT p.namespace, p.process_id, concat('is ', o.state, ', its process is ', p.status, ' without a task') AS detail
FROM progressor.bulk_operations o
JOIN progressor.processes p
    ON p.namespace = 'progressor.operations' AND p.process_id = o.operation_id AND p.slot = o.slot
WHERE o.ended_at IS NULL
    AND p.status IN ('init', 'running')
    AND NOT EXISTS (
        SELECT
        FROM progressor.running r
        WHERE (r.slot, r.namespace, r.process_id) = (p.slot, p.namespace, p.process_id)
    )
    AND NOT EXISTS (
        SELECT
        FROM progressor.schedule s
        WHERE (s.slot, s.namespace, s.process_id) = (p.slot, p.namespace, p.process_id)
    )

-- name: bulk_counters_match_their_items
-- says: a bulk operation counts its items and their results, and looks for no result before the first item without
-- deep
-- match_bulk adds items and apply_bulk their results, with the counters; delete_bulk deletes the last items.
SELECT 'progressor.operations' AS namespace, o.operation_id AS process_id,
    concat('is ', o.state, ' at ', o.next_item, ' with ',
        concat_ws('/', o.matched_count, o.done_count, o.skipped_count, o.failed_count),
        ' matched/done/skipped/failed; its items are ', i.count, ' up to ', i.last, ' with ',
        concat_ws('/', i.done, i.skipped, i.failed)) AS detail
FROM progressor.bulk_operations o
CROSS JOIN LATERAL (
    SELECT count(*) AS count, coalesce(max(i.item), 0) AS last,
        count(*) FILTER (WHERE i.result = 'done') AS done,
        count(*) FILTER (WHERE i.result = 'skipped') AS skipped,
        count(*) FILTER (WHERE i.result = 'failed') AS failed,
        coalesce(min(i.item) FILTER (WHERE i.result IS NULL), max(i.item) + 1, 1) AS next
    FROM progressor.bulk_items i
    WHERE i.operation_id = o.operation_id
) i
WHERE (o.matched_count, o.matched_count) <> (i.count, i.last)
    OR (
        EXISTS (
            SELECT
            FROM progressor.processes p
            WHERE (p.slot, p.namespace, p.process_id) = (o.slot, 'progressor.operations', o.operation_id)
        )
        AND (
            (o.done_count, o.skipped_count, o.failed_count) <> (i.done, i.skipped, i.failed)
            OR o.next_item > i.next
            OR (o.state = 'done' AND i.next <= i.last)
            OR (o.state IN ('done', 'stopped')) <> (o.ended_at IS NOT NULL)
        )
    )

-- name: bulk_items_have_an_operation
-- says: an item belongs to a bulk operation
-- deep
-- delete_bulk deletes an operation with the first of its items.
SELECT i.namespace, i.process_id, concat('item ', i.item, ' of ', i.operation_id, ', which does not exist') AS detail
FROM progressor.bulk_items i
LEFT JOIN progressor.bulk_operations o USING (operation_id)
WHERE o.operation_id IS NULL
