-- name: read_revision
-- Reads how many changes of bindings and tokens there have been.
SELECT revision
FROM progressor.access_revision

-- name: read_bindings
-- Reads bindings in their order, after one of them.
SELECT principal, role, namespace, created_at, created_by
FROM progressor.access_bindings
WHERE (principal, role, namespace) > (%(after_principal)s, %(after_role)s, %(after_namespace)s)
ORDER BY principal, role, namespace
LIMIT %(limit)s::bigint

-- name: add_binding
-- Adds a binding; no row if it is there, or there are too many.
WITH added AS (
    INSERT INTO progressor.access_bindings (principal, role, namespace, created_at, created_by)
    SELECT %(principal)s, %(role)s, %(namespace)s, coalesce(%(now)s::timestamptz, now()), %(author)s
    WHERE (SELECT count(*) FROM progressor.access_bindings) < %(count_max)s::bigint
    ON CONFLICT DO NOTHING
    RETURNING principal, role, namespace, created_at, created_by
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, NULL, to_jsonb(a)
    FROM added a
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
),
counted AS (
    UPDATE progressor.access_revision
    SET revision = revision + 1
    WHERE EXISTS (SELECT FROM added)
)
SELECT a.*
FROM added a

-- name: remove_binding
-- Removes a binding; no row if there is none.
WITH removed AS (
    DELETE FROM progressor.access_bindings
    WHERE (principal, role, namespace) = (%(principal)s, %(role)s, %(namespace)s)
    RETURNING principal, role, namespace, created_at, created_by
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, to_jsonb(r), NULL
    FROM removed r
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
),
counted AS (
    UPDATE progressor.access_revision
    SET revision = revision + 1
    WHERE EXISTS (SELECT FROM removed)
)
SELECT r.*
FROM removed r

-- name: read_tokens
-- Reads tokens in the order of their ids, after one of them.
SELECT token_id, name, created_at, created_by, expires_at, revoked_at, last_used_at
FROM progressor.access_tokens
WHERE token_id > %(after)s
ORDER BY token_id
LIMIT %(limit)s::bigint

-- name: read_valid_tokens
-- Reads the tokens that are neither revoked nor expired, with their hashes.
SELECT token_id, name, secret_hash, expires_at
FROM progressor.access_tokens
WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > coalesce(%(now)s::timestamptz, now()))

-- name: add_token
-- Adds a token; no row if there are too many.
WITH added AS (
    INSERT INTO progressor.access_tokens (token_id, name, secret_hash, created_at, created_by, expires_at)
    SELECT %(token_id)s, %(name)s, %(secret_hash)s, coalesce(%(now)s::timestamptz, now()), %(author)s,
        coalesce(%(now)s::timestamptz, now()) + %(lifetime)s::interval
    WHERE (SELECT count(*) FROM progressor.access_tokens) < %(count_max)s::bigint
    RETURNING token_id, name, created_at, created_by, expires_at, revoked_at, last_used_at
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb || jsonb_build_object('object_id', a.token_id), NULL, to_jsonb(a)
    FROM added a
    WHERE %(audit)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
),
counted AS (
    UPDATE progressor.access_revision
    SET revision = revision + 1
    WHERE EXISTS (SELECT FROM added)
)
SELECT a.*
FROM added a

-- name: revoke_token
-- Revokes a token; no row if there is none. A second time changes nothing. Locks: the token.
WITH known AS MATERIALIZED (
    SELECT *
    FROM progressor.access_tokens
    WHERE token_id = %(token_id)s
    FOR NO KEY UPDATE
),
revoked AS (
    UPDATE progressor.access_tokens t
    SET revoked_at = coalesce(t.revoked_at, %(now)s::timestamptz, now())
    FROM known k
    WHERE t.token_id = k.token_id
    RETURNING t.token_id, t.name, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.last_used_at
),
audited AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT %(audit)s::jsonb, to_jsonb(k) - 'secret_hash', to_jsonb(r)
    FROM revoked r
    JOIN known k USING (token_id)
    WHERE %(audit)s::text IS NOT NULL AND k.revoked_at IS NULL
    ON CONFLICT DO NOTHING
),
counted AS (
    UPDATE progressor.access_revision
    SET revision = revision + 1
    WHERE EXISTS (SELECT FROM revoked)
)
SELECT r.*
FROM revoked r

-- name: note_used
-- Notes when tokens were used for the last time.
UPDATE progressor.access_tokens t
SET last_used_at = greatest(t.last_used_at, coalesce(%(now)s::timestamptz, now()))
WHERE t.token_id = ANY (%(token_ids)s::text[])

-- name: delete_ended_tokens
-- Deletes tokens that were revoked, or expired, long ago.
DELETE FROM progressor.access_tokens
WHERE least(revoked_at, expires_at) < coalesce(%(now)s::timestamptz, now()) - %(retention)s
