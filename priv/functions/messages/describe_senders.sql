-- Describes processes that may have messages to be delivered.
-- Returns: an effect of settle_gates for each.
CREATE FUNCTION describe_senders(p_key process_key[])
RETURNS jsonb
IMMUTABLE
BY ITEM
AS $$
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_array(
            k.namespace, k.process_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true))
        FROM unnest(p_key) AS k
    );
END;
$$;
