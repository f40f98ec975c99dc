-- Names what must never give out a number twice, neither after a restore nor in two cells.
-- Returns: the sequences.
CREATE FUNCTION numbered_sequences()
RETURNS regclass[]
AS $$
BEGIN
    RETURN ARRAY[
        'task_ids', 'lease_tokens', 'replica_ids', 'message_ids', 'audit_entries_entry_id_seq']::regclass[];
END;
$$;
