-- Keeps of a filter what the order of an index decides: processes that match it are neighbours in processes_by_creation, in
-- processes_in_error or, of one group of failures, in processes_by_failure. The other fields are examined one by one.
-- Returns: the filter, without namespaces.
CREATE FUNCTION walked_filter(p_filter jsonb)
RETURNS jsonb
IMMUTABLE
AS $$
BEGIN
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'created_from', p_filter -> 'created_from', 'created_to', p_filter -> 'created_to',
        'failure_id', p_filter -> 'failure_id',
        'statuses', CASE
            WHEN p_filter -> 'statuses' = '["error"]'
                OR p_filter ?| '{failure_id,failure_reason,broken_from,broken_to}'
            THEN '["error"]'::jsonb END));
END;
$$;
