-- name: write_notes
-- Adds the entries of requests that have changed nothing, unless they have: it may have been unknown. One that changes
-- something only later has an entry of its own then. By the clock of PostgreSQL, less the time that they have waited here.
INSERT INTO progressor.audit_entries (entry, result, written_at, left_out)
SELECT n.entry::jsonb, n.result, clock_timestamp() - make_interval(secs => n.age), n.left_out
FROM unnest(%(entries)s::text[], %(results)s::text[], %(ages)s::double precision[], %(left_out)s::bigint[])
    WITH ORDINALITY AS n (entry, result, age, left_out, place)
WHERE NOT EXISTS (
    SELECT
    FROM progressor.audit_entries e
    WHERE e.request_id = (n.entry::jsonb ->> 'request_id')::uuid AND e.result = 'OK'
)
ORDER BY n.place -- Joined by a hash, they would be numbered in any order.

-- name: read_unsealed_seconds
-- Reads for how long the oldest entry has waited to be sealed.
SELECT coalesce(extract(epoch FROM clock_timestamp() - (
    SELECT e.written_at FROM progressor.audit_entries e WHERE e.number IS NULL ORDER BY e.entry_id LIMIT 1
)), 0)::double precision

-- name: read_head
-- Reads both ends of the chain, and how many entries have yet to be added to it, up to 10,000.
SELECT c.head_number AS number, encode(c.head_hash, 'hex') AS hash, c.anchor_number,
    encode(c.anchor_hash, 'hex') AS anchor_hash,
    (SELECT count(*) FROM (SELECT FROM progressor.audit_entries e WHERE e.number IS NULL LIMIT 10000) u)
        AS unsealed_count
FROM progressor.audit_chain c

-- name: list_entries
-- Reads entries that match, newest first; and, if it had to look at too many, where it has ended.
WITH seen AS MATERIALIZED (
    SELECT e.*
    FROM progressor.audit_entries e
    WHERE (e.written_at, e.entry_id)
            < (coalesce(%(before_at)s::timestamptz, 'infinity'), %(before_id)s::bigint)
        AND e.written_at >= coalesce(%(since)s::timestamptz, '-infinity')
    ORDER BY e.written_at DESC, e.entry_id DESC
    LIMIT %(examined_max)s
),
found AS (
    SELECT s.*
    FROM seen s
    WHERE (%(since)s::timestamptz IS NULL OR s.written_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR s.written_at < %(until)s)
        AND (%(principal)s = '' OR s.entry ->> 'principal' = %(principal)s)
        AND (%(method)s = '' OR s.entry ->> 'method' = %(method)s)
        AND (%(namespace)s = '' OR s.entry ->> 'namespace' = %(namespace)s)
        AND (%(object_id)s = '' OR s.entry ->> 'object_id' = %(object_id)s)
        AND (%(result)s = '' OR s.result = %(result)s)
        AND EXISTS (
            SELECT
            FROM unnest(%(patterns)s::text[]) AS p (pattern)
            WHERE CASE
                WHEN p.pattern = '*' THEN true
                WHEN s.entry ->> 'namespace' = '' OR p.pattern NOT LIKE '%%*' THEN
                    s.entry ->> 'namespace' = p.pattern
                ELSE starts_with(s.entry ->> 'namespace', left(p.pattern, -1))
                    AND (starts_with(p.pattern, 'progressor.')
                        OR NOT starts_with(s.entry ->> 'namespace', 'progressor.'))
            END
        )
    ORDER BY s.written_at DESC, s.entry_id DESC
    LIMIT %(limit)s
)
SELECT r.written_at AS reached_at, r.entry_id AS reached_id, f.entry_id, f.number, f.written_at, f.entry ->> 'principal' AS principal,
    f.entry ->> 'credential' AS credential, f.entry ->> 'binding' AS binding, f.entry ->> 'peer' AS peer,
    f.entry ->> 'method' AS method, f.entry ->> 'namespace' AS namespace,
    f.entry ->> 'object_id' AS object_id, f.entry ->> 'reason' AS reason, f.result,
    f.before::text AS before, f.after::text AS after, f.entry ->> 'trace_id' AS trace_id, f.left_out,
    encode(f.hash, 'hex') AS hash
FROM (VALUES (true)) o (is_one)
LEFT JOIN (
    SELECT s.written_at, s.entry_id
    FROM seen s
    ORDER BY s.written_at DESC, s.entry_id DESC
    LIMIT 1 OFFSET %(examined_max)s - 1
) r ON true
LEFT JOIN found f ON true
ORDER BY f.written_at DESC, f.entry_id DESC

-- name: follow_entries
-- Reads sealed entries that match behind a number, in the order of their numbers; and the last one that it has looked at.
WITH seen AS MATERIALIZED (
    SELECT e.*
    FROM progressor.audit_entries e
    WHERE e.number > %(after)s::bigint
    ORDER BY e.number
    LIMIT %(examined_max)s
),
found AS (
    SELECT s.*
    FROM seen s
    WHERE (%(since)s::timestamptz IS NULL OR s.written_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR s.written_at < %(until)s)
        AND (%(principal)s = '' OR s.entry ->> 'principal' = %(principal)s)
        AND (%(method)s = '' OR s.entry ->> 'method' = %(method)s)
        AND (%(namespace)s = '' OR s.entry ->> 'namespace' = %(namespace)s)
        AND (%(object_id)s = '' OR s.entry ->> 'object_id' = %(object_id)s)
        AND (%(result)s = '' OR s.result = %(result)s)
        AND EXISTS (
            SELECT
            FROM unnest(%(patterns)s::text[]) AS p (pattern)
            WHERE CASE
                WHEN p.pattern = '*' THEN true
                WHEN s.entry ->> 'namespace' = '' OR p.pattern NOT LIKE '%%*' THEN
                    s.entry ->> 'namespace' = p.pattern
                ELSE starts_with(s.entry ->> 'namespace', left(p.pattern, -1))
                    AND (starts_with(p.pattern, 'progressor.')
                        OR NOT starts_with(s.entry ->> 'namespace', 'progressor.'))
            END
        )
    ORDER BY s.number
    LIMIT %(limit)s
)
SELECT r.number AS reached_number, f.entry_id, f.number, f.written_at, f.entry ->> 'principal' AS principal,
    f.entry ->> 'credential' AS credential, f.entry ->> 'binding' AS binding, f.entry ->> 'peer' AS peer,
    f.entry ->> 'method' AS method, f.entry ->> 'namespace' AS namespace,
    f.entry ->> 'object_id' AS object_id, f.entry ->> 'reason' AS reason, f.result,
    f.before::text AS before, f.after::text AS after, f.entry ->> 'trace_id' AS trace_id, f.left_out,
    encode(f.hash, 'hex') AS hash
FROM (VALUES (true)) o (is_one)
LEFT JOIN (SELECT max(s.number) AS number FROM seen s) r ON true
LEFT JOIN found f ON true
ORDER BY f.number
