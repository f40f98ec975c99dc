-- Builds the message of a refused run: what it was to do and why it could not.
-- p_reason: the machine-readable reason; p_gate: the missing gate.
-- Locks: none; the caller has seen the process under its lock.
-- Returns: the message; for a process in error, with the first 500 characters of its detail.
CREATE FUNCTION describe_refusal(
    p_target     text,
    p_slot       smallint,  -- of the process
    p_namespace  text,
    p_process_id text,
    p_reason     text,
    p_gate       text
)
RETURNS text
STABLE
BY KEY
AS $$
BEGIN
    RETURN concat(
        CASE p_target WHEN 'job' THEN 'job' ELSE 'process' END,
        ' ''', p_process_id, ''' was not ',
        CASE p_target
            WHEN 'start' THEN 'started'
            WHEN 'job' THEN 'submitted'
            WHEN 'call' THEN 'called'
            WHEN 'notify' THEN 'notified'
        END,
        ': ',
        CASE p_reason
            WHEN 'PROCESS_ALREADY_EXISTS' THEN 'a process of this id exists already'
            WHEN 'PROCESS_NOT_FOUND' THEN 'it does not exist'
            WHEN 'PROCESS_FINISHED' THEN 'it is finished'
            WHEN 'PROCESS_FAILED' THEN concat_ws(': ', 'it is in error', nullif((
                SELECT left(p.detail, 500)
                FROM processes p
                WHERE (p.slot, p.namespace, p.process_id) = (p_slot, p_namespace, p_process_id)
            ), ''))
            WHEN 'EVENT_NOT_FOUND'
                THEN 'its history ends before the event that the history range starts after'
            WHEN 'GATE_NOT_FOUND' THEN concat('gate ''', p_gate, ''' does not exist')
            WHEN 'IDEMPOTENCY_KEY_REUSED' THEN 'its idempotency key belongs to a different request'
            WHEN 'NAMESPACE_NOT_FOUND' THEN concat(
                'namespace ''', p_namespace, ''' does not exist')
            ELSE p_reason
        END);
END;
$$;
