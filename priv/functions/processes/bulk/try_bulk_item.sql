-- Applies a bulk operation to one process, unless a lock that it needs is held for longer than lock_timeout. What PostgreSQL
-- refuses fails this item alone. It takes a subtransaction, so it is for what is applied alone.
-- Locks: as apply_bulk_item.
-- Returns: the result; null: it is locked; and what PostgreSQL said.
CREATE FUNCTION try_bulk_item(
    LIKE own_arguments, p_bulk bulk_operations, p_item bulk_items, OUT applied applied_item, OUT error text
)
AS $$
BEGIN
    applied := apply_bulk_item(p_now, p_replica_id, p_starvation_timeout, p_bulk, p_item);
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        applied := NULL;
    WHEN OTHERS THEN
        -- As storage/postgres/pools.py tells what is refused from what may be tried later.
        IF SQLSTATE !~ '^(21|22|23|54|P0|XX)' THEN
            RAISE;
        END IF;
        applied := ('failed', 'INTERNAL', NULL, NULL, NULL, NULL, NULL)::applied_item;
        error := SQLERRM;
END;
$$;
