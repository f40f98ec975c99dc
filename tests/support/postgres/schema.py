"""The schema as it is today, in one file: what all migrations together come to.

``python -m tests.support.postgres.schema`` writes ``priv/migrations/schema.sql``; a test proves it
equal. It comes from PostgreSQL's own catalogue, in a fixed order, so that it reads the same
everywhere.
"""

import sys
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from progressor.storage.postgres.migrations import migrate
from tests.support.postgres.cluster import open_cluster

FILE = Path(__file__).parents[3] / "priv" / "migrations" / "schema.sql"

_HEADER = """\
-- The schema as it is today: what the numbered files beside this one come to.
-- Written by `make migrate-schema`; tests/storage/postgres/test_migrations.py proves it equal. Only
-- people read it.
"""

_TYPES: LiteralString = """
    SELECT format(E'CREATE TYPE %s AS ENUM (%s);', t.oid::regtype,
        string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder))
    FROM pg_type t
    JOIN pg_enum e ON e.enumtypid = t.oid
    WHERE t.typnamespace = 'progressor'::regnamespace
    GROUP BY t.oid, t.typname
    ORDER BY t.typname"""

_SEQUENCES: LiteralString = """
    SELECT format('CREATE SEQUENCE %s AS %s;', s.seqrelid::regclass, s.seqtypid::regtype)
    FROM pg_sequence s
    JOIN pg_class c ON c.oid = s.seqrelid
    WHERE c.relnamespace = 'progressor'::regnamespace
    ORDER BY c.relname"""

# Not-null constraints are rows of pg_constraint from PostgreSQL 18 on: they stand with the columns.
_TABLES: LiteralString = """
    SELECT format(E'CREATE TABLE %s (\\n%s\\n)%s;', c.oid::regclass,
        concat_ws(E',\\n',
            (SELECT string_agg(format('    %I %s%s%s%s', a.attname,
                    format_type(a.atttypid, a.atttypmod),
                    CASE WHEN a.attcollation NOT IN (0, 'pg_catalog.default'::regcollation)
                        THEN format(' COLLATE %s', a.attcollation::regcollation) ELSE '' END,
                    CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
                    CASE
                        WHEN d.adbin IS NULL THEN ''
                        WHEN a.attgenerated = 's' THEN format(' GENERATED ALWAYS AS (%s) STORED',
                            btrim(pg_get_expr(d.adbin, d.adrelid), E'\\n'))
                        ELSE ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)
                    END),
                    E',\\n' ORDER BY a.attnum)
                FROM pg_attribute a
                LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
            (SELECT string_agg(format('    CONSTRAINT %I %s', k.conname,
                    pg_get_constraintdef(k.oid)), E',\\n' ORDER BY k.contype DESC, k.conname)
                FROM pg_constraint k
                WHERE k.conrelid = c.oid AND k.contype <> 'n')),
        coalesce(E' WITH (\\n    ' || array_to_string(c.reloptions, E',\\n    ') || E'\\n)', ''))
    FROM pg_class c
    WHERE c.relnamespace = 'progressor'::regnamespace AND c.relkind IN ('r', 'p')
        AND NOT c.relispartition
    ORDER BY c.relname"""

_INDEXES: LiteralString = """
    SELECT pg_get_indexdef(i.indexrelid) || ';'
    FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'progressor'::regnamespace AND NOT c.relispartition
        AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)
    ORDER BY i.indrelid::regclass::text, c.relname"""


def schema_of(connection: psycopg.Connection[Any]) -> str:
    # Names are given in full: the hash schemas of the functions are not on any search path.
    connection.execute("SET search_path = pg_catalog")
    parts = [
        row[0]
        for query in (_TYPES, _SEQUENCES, _TABLES, _INDEXES)
        for row in connection.execute(query).fetchall()
    ]
    return _HEADER + "\n" + "\n\n".join(parts) + "\n"


def main() -> None:
    with open_cluster() as cluster:
        conninfo = cluster.create_database()
        migrate(conninfo)
        with psycopg.connect(conninfo) as connection:
            FILE.write_text(schema_of(connection), "utf-8")
    sys.stdout.write(f"{FILE} written\n")


if __name__ == "__main__":
    main()
