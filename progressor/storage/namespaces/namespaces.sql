-- name: create_namespace
-- Creates a namespace; no row if the name is taken.
WITH created AS (
    INSERT INTO progressor.namespaces (name, revision, config, created_at, updated_at)
    VALUES (%(name)s, 1, %(config)s, now(), now())
    ON CONFLICT DO NOTHING
    RETURNING *
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, NULL, c.config
    FROM created c
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT name, revision, config, created_at, updated_at, paused_at, pause_reason, pause_author,
    refuses_requests
FROM created

-- name: update_namespace
-- Replaces a namespace's configuration if it is still at the revision that was read.
WITH changed AS (
    UPDATE progressor.namespaces
    SET revision = revision + 1, config = %(config)s, updated_at = now()
    WHERE name = %(name)s AND revision = %(revision)s
    RETURNING *
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, n.config, c.config
    FROM changed c
    JOIN progressor.namespaces n USING (name)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT name, revision, config, created_at, updated_at, paused_at, pause_reason, pause_author,
    refuses_requests
FROM changed

-- name: read_namespaces
-- Reads namespaces after a name, in the order of names; of certain names alone, if any are given.
SELECT name, revision, config, created_at, updated_at, paused_at, pause_reason, pause_author,
    refuses_requests
FROM progressor.namespaces
WHERE name > %(after)s
    AND (%(names)s::text[] IS NULL OR name = ANY (%(names)s::text[]))
ORDER BY name
LIMIT %(limit)s::bigint

-- name: read_paused
-- Reads the paused namespaces after a name, and those of certain names, in the order of names.
SELECT name, revision, config, created_at, updated_at, paused_at, pause_reason, pause_author,
    refuses_requests
FROM progressor.namespaces
WHERE name > %(after)s AND (paused_at IS NOT NULL OR name = ANY (%(names)s::text[]))
ORDER BY name
LIMIT %(limit)s::bigint

-- name: pause_namespaces
-- Pauses the namespaces of certain names, or all that are not paused, and notifies the other replicas in the
-- same transaction: PostgreSQL sends it after the commit.
-- Locks: namespaces in the order of names.
WITH chosen AS MATERIALIZED (
    SELECT name, paused_at, pause_reason, refuses_requests
    FROM progressor.namespaces
    WHERE name = ANY (%(names)s::text[]) OR (%(names)s::text[] IS NULL AND paused_at IS NULL)
    ORDER BY name
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE progressor.namespaces n
    SET paused_at = coalesce(n.paused_at, now()), pause_reason = %(reason)s,
        pause_author = %(author)s, refuses_requests = %(refuses_requests)s,
        revision = n.revision + 1, updated_at = now()
    FROM chosen c
    WHERE n.name = c.name
    RETURNING n.*
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb,
        CASE WHEN o.paused_at IS NOT NULL THEN jsonb_build_object(
            'paused_at', o.paused_at, 'reason', o.pause_reason, 'refuses_requests', o.refuses_requests) END,
        jsonb_build_object(
            'paused_at', c.paused_at, 'reason', c.pause_reason, 'refuses_requests', c.refuses_requests)
    FROM changed c
    JOIN chosen o USING (name)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
),
notified AS MATERIALIZED (
    SELECT count(pg_notify('progressor_' || r.replica_id, 'pauses'))
    FROM progressor.replicas r
    WHERE r.replica_id <> %(replica_id)s AND EXISTS (SELECT FROM changed)
)
SELECT c.name, c.revision, c.config, c.created_at, c.updated_at, c.paused_at, c.pause_reason,
    c.pause_author, c.refuses_requests
FROM changed c
CROSS JOIN notified

-- name: resume_namespace
-- Resumes a paused namespace, and notifies the other replicas in the same transaction; no row if it is not
-- paused.
WITH chosen AS MATERIALIZED (
    SELECT name, paused_at, pause_reason, refuses_requests
    FROM progressor.namespaces
    WHERE name = %(name)s AND paused_at IS NOT NULL
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE progressor.namespaces n
    SET paused_at = NULL, pause_reason = NULL, pause_author = NULL, refuses_requests = false,
        revision = n.revision + 1, updated_at = now()
    FROM chosen c
    WHERE n.name = c.name
    RETURNING n.*
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb,
        jsonb_build_object(
            'paused_at', o.paused_at, 'reason', o.pause_reason, 'refuses_requests', o.refuses_requests), NULL
    FROM changed c
    JOIN chosen o USING (name)
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
),
notified AS MATERIALIZED (
    SELECT count(pg_notify('progressor_' || r.replica_id, 'pauses'))
    FROM progressor.replicas r
    WHERE r.replica_id <> %(replica_id)s AND EXISTS (SELECT FROM changed)
)
SELECT c.name, c.revision, c.config, c.created_at, c.updated_at, c.paused_at, c.pause_reason,
    c.pause_author, c.refuses_requests
FROM changed c
CROSS JOIN notified
