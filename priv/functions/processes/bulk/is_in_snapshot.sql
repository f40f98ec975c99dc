-- Finds out whether a transaction was visible to a snapshot of this database, by what a row has as its `xmin`. That has
-- 32 bits: the 64 of the latest transaction that ends in these are taken, so that a row of 4 billion transactions ago
-- may seem new.
-- Returns: whether it was; null if there is no snapshot.
CREATE FUNCTION is_in_snapshot(p_xmin xid, p_snapshot pg_snapshot)
RETURNS boolean
LANGUAGE sql
STABLE
AS $$
    SELECT pg_visible_in_snapshot(
        (pg_snapshot_xmax(pg_current_snapshot())::text::bigint
            - ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint - p_xmin::text::bigint) & 4294967295)
        )::text::xid8, p_snapshot)
$$;
