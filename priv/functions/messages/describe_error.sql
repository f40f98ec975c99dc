-- Describes an error as part of the args of a reply.
-- Returns: an object with the error.
CREATE FUNCTION describe_error(
    p_code     integer,
    p_reason   text,
    p_message  text,
    p_rejected boolean DEFAULT NULL,
    p_metadata json DEFAULT NULL
)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT jsonb_build_object('error', jsonb_build_object(
        'code', p_code, 'reason', p_reason, 'message', coalesce(p_message, ''),
        'rejected', coalesce(p_rejected, false), 'metadata', coalesce(p_metadata, '{}')))
$$;
