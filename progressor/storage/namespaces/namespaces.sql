-- name: create_namespace
-- Creates a namespace; no row if the name is taken.
INSERT INTO progressor.namespaces (name, revision, config, created_at, updated_at)
VALUES (%(name)s, 1, %(config)s, now(), now())
ON CONFLICT DO NOTHING
RETURNING name, revision, config, created_at, updated_at

-- name: update_namespace
-- Replaces a namespace's configuration if it is still at the revision that was read.
UPDATE progressor.namespaces
SET revision = revision + 1, config = %(config)s, updated_at = now()
WHERE name = %(name)s AND revision = %(revision)s
RETURNING name, revision, config, created_at, updated_at

-- name: read_namespaces
-- Reads namespaces after a name, in the order of names; of certain names alone, if any are given.
SELECT name, revision, config, created_at, updated_at
FROM progressor.namespaces
WHERE name > %(after)s
    AND (%(names)s::text[] IS NULL OR name = ANY (%(names)s::text[]))
ORDER BY name
LIMIT %(limit)s::bigint
