-- Why a job has ended, without the reason that its detail begins with.
-- Returns: the words; 'the job has ended' where there are none.
CREATE FUNCTION describe_job_end(p_detail text)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT coalesce(
        nullif(regexp_replace(p_detail, '^(JOB_CANCELLED|JOB_FAILED|ZOMBIE): ', ''), ''),
        'the job has ended')
$$;
