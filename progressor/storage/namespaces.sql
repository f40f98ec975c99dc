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

-- name: get_namespace
SELECT name, revision, config, created_at, updated_at
FROM progressor.namespaces
WHERE name = %(name)s

-- name: get_namespaces
SELECT name, revision, config, created_at, updated_at
FROM progressor.namespaces
WHERE name = ANY (%(names)s)

-- name: list_namespaces
SELECT name, revision, config, created_at, updated_at
FROM progressor.namespaces
WHERE name > %(after)s
ORDER BY name
LIMIT %(limit)s

-- name: lock_schedules
-- Who fires one of its schedules holds that, and then starts processes.
SELECT
FROM progressor.schedules s
WHERE s.namespace COLLATE "C" = %(name)s
ORDER BY s.slot, s.namespace, s.schedule_id
FOR UPDATE

-- name: lock_processes
-- Keeps new processes out until the namespace is gone: their functions look for it under this lock.
LOCK TABLE progressor.processes IN SHARE ROW EXCLUSIVE MODE

-- name: has_processes
SELECT EXISTS (SELECT FROM progressor.processes WHERE namespace = %(name)s)

-- name: delete_namespace
-- Its gates go with it: nobody holds them, since it has no processes. So do its schedules.
WITH gone AS (
    DELETE FROM progressor.namespaces
    WHERE name = %(name)s
    RETURNING name
), swept AS (
    DELETE FROM progressor.gates g
    USING gone
    WHERE g.namespace = gone.name
), unscheduled AS (
    DELETE FROM progressor.schedules s
    USING gone
    WHERE s.namespace COLLATE "C" = gone.name
), unfired AS (
    DELETE FROM progressor.firings f
    USING gone, progressor.schedules s
    WHERE s.namespace COLLATE "C" = gone.name
        AND (f.slot, f.namespace, f.schedule_id) = (s.slot, s.namespace, s.schedule_id)
)
SELECT name
FROM gone
