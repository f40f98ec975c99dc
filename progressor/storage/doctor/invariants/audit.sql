-- The invariants of the audit; see processes.sql for what holds for all of them.

-- name: last_audit_entries_form_a_chain
-- says: the last 1,000 audit entries are in the chain, and are what they were
-- An entry is sealed with a hash of itself and of the hash before it, and never changes.
WITH bounds AS MATERIALIZED (
    SELECT c.*, greatest(c.anchor_number + 1, c.head_number - 1000) AS first_number
    FROM progressor.audit_chain c
),
seen AS (
    SELECT b.first_number, b.anchor_number, e AS entry, e.number, e.hash,
        lag(e.number, 1, b.first_number - 1) OVER w AS previous_number,
        coalesce(
            lag(e.hash) OVER w, CASE WHEN e.number = b.anchor_number + 1 THEN b.anchor_hash END) AS previous_hash
    FROM bounds b
    JOIN progressor.audit_entries e ON e.number >= b.first_number
    WINDOW w AS (ORDER BY e.number)
)
(
    SELECT '' AS namespace, concat('audit entry ', s.number) AS process_id,
        CASE
            WHEN s.number <> s.previous_number + 1 THEN concat('stands behind entry ', s.previous_number)
            ELSE 'does not fit its hash and the entry before it'
        END AS detail
    FROM seen s
    WHERE s.number <> s.previous_number + 1
        OR s.hash <> progressor.hash_audit_entry(s.previous_hash, s.entry)
    ORDER BY s.number
)
UNION ALL
SELECT '', concat('audit entry ', b.head_number), concat('is the head of the chain, whose last entry is ', l.number)
FROM bounds b
CROSS JOIN LATERAL (
    SELECT coalesce(max(s.number), b.anchor_number) AS number, (array_agg(s.hash ORDER BY s.number DESC))[1] AS hash
    FROM seen s
) l
WHERE l.number <> b.head_number OR coalesce(l.hash, b.anchor_hash) <> b.head_hash
UNION ALL
SELECT '', concat('audit entry ', e.number), concat('stands before the chain, which begins behind entry ', b.anchor_number)
FROM bounds b
JOIN progressor.audit_entries e ON e.number <= b.anchor_number

-- name: audit_entries_form_a_chain
-- says: all audit entries are in the chain, and are what they were
-- deep
-- As above, from the last entry that retention has deleted on.
WITH bounds AS MATERIALIZED (
    SELECT c.*, c.anchor_number + 1 AS first_number
    FROM progressor.audit_chain c
),
seen AS (
    SELECT b.first_number, b.anchor_number, e AS entry, e.number, e.hash,
        lag(e.number, 1, b.first_number - 1) OVER w AS previous_number,
        coalesce(
            lag(e.hash) OVER w, CASE WHEN e.number = b.anchor_number + 1 THEN b.anchor_hash END) AS previous_hash
    FROM bounds b
    JOIN progressor.audit_entries e ON e.number >= b.first_number
    WINDOW w AS (ORDER BY e.number)
)
(
    SELECT '' AS namespace, concat('audit entry ', s.number) AS process_id,
        CASE
            WHEN s.number <> s.previous_number + 1 THEN concat('stands behind entry ', s.previous_number)
            ELSE 'does not fit its hash and the entry before it'
        END AS detail
    FROM seen s
    WHERE s.number <> s.previous_number + 1
        OR s.hash <> progressor.hash_audit_entry(s.previous_hash, s.entry)
    ORDER BY s.number
)
UNION ALL
SELECT '', concat('audit entry ', b.head_number), concat('is the head of the chain, whose last entry is ', l.number)
FROM bounds b
CROSS JOIN LATERAL (
    SELECT coalesce(max(s.number), b.anchor_number) AS number, (array_agg(s.hash ORDER BY s.number DESC))[1] AS hash
    FROM seen s
) l
WHERE l.number <> b.head_number OR coalesce(l.hash, b.anchor_hash) <> b.head_hash
UNION ALL
SELECT '', concat('audit entry ', e.number), concat('stands before the chain, which begins behind entry ', b.anchor_number)
FROM bounds b
JOIN progressor.audit_entries e ON e.number <= b.anchor_number
