-- name: read_places
-- Reads the cells of namespaces after a name, in the order of names.
SELECT namespace, cell
FROM progressor.cell_namespaces
WHERE namespace > %(after)s
ORDER BY namespace
LIMIT %(limit)s::bigint

-- name: find_place
SELECT cell, revision
FROM progressor.cell_namespaces
WHERE namespace = %(namespace)s

-- name: claim_place
-- Claims the name of a namespace for a cell, unless another one has it; returns the cell that has it then.
INSERT INTO progressor.cell_namespaces AS c (namespace, cell, revision)
VALUES (%(namespace)s, %(cell)s, 1)
ON CONFLICT (namespace) DO UPDATE SET revision = c.revision + 1
RETURNING c.cell

-- name: release_place
-- Gives the name of a deleted namespace back, unless it has been claimed again meanwhile.
DELETE FROM progressor.cell_namespaces
WHERE namespace = %(namespace)s AND cell = %(cell)s AND revision = %(revision)s

-- name: adopt
-- Notes the cell of namespaces that the directory does not know.
INSERT INTO progressor.cell_namespaces (namespace, cell, revision)
SELECT n.name, %(cell)s, 1
FROM unnest(%(names)s::text[]) AS n(name)
ON CONFLICT DO NOTHING
