-- Retention: deletes up to p_limit items of a bulk operation whose process has been deleted, the last ones first, and
-- the operation with the first one. Until then its id is not free.
-- Locks: the operation, SKIP LOCKED; then its items.
-- Returns: how many rows were deleted; 0 if there is no such operation.
CREATE FUNCTION delete_bulk(p_namespace text, p_limit integer)
RETURNS integer
BY KEY
AS $$
DECLARE
    v_bulk bulk_operations%ROWTYPE;
BEGIN
    SELECT *
    INTO v_bulk
    FROM bulk_operations o
    WHERE NOT EXISTS (
        SELECT
        FROM processes p
        WHERE (p.slot, p.namespace, p.process_id) = (o.slot, p_namespace, o.operation_id)
    )
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- From the end: no index entry of a deleted item is ever read again.
    DELETE FROM bulk_items i
    WHERE i.operation_id = v_bulk.operation_id
        AND i.item BETWEEN v_bulk.matched_count - p_limit + 1 AND v_bulk.matched_count;
    IF v_bulk.matched_count > p_limit THEN
        UPDATE bulk_operations o
        SET matched_count = o.matched_count - p_limit
        WHERE o.operation_id = v_bulk.operation_id;
        RETURN p_limit;
    END IF;
    DELETE FROM bulk_operations o WHERE o.operation_id = v_bulk.operation_id;
    RETURN v_bulk.matched_count + 1;
END;
$$;
