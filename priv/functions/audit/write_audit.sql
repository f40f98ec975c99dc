-- Adds the entry of a request (JSON), with what it has changed, in the transaction of the change; null: it needs none.
-- A request has one entry: that of its first change.
-- Locks: none.
CREATE FUNCTION write_audit(p_audit text, p_before jsonb, p_after jsonb)
RETURNS void
BY KEY
AS $$
BEGIN
    IF p_audit IS NOT NULL THEN
        INSERT INTO audit_entries (entry, before, after)
        VALUES (p_audit::jsonb, p_before, p_after)
        ON CONFLICT DO NOTHING;
    END IF;
END;
$$;
