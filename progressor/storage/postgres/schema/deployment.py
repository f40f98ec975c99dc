"""The functions of releases as they are in the database: ours and unchanged, or no longer used.

A schema is known by its name, and anyone who may create schemas in the database can create one of
that name first, with functions that the engine would run with its own rights. So one is used only
if it belongs to the owner of the tables, or to a superuser, and has what this release puts there.
"""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from progressor.storage.postgres.functions import Functions

KEPT = dt.timedelta(days=7)
"""For how long the functions of a release stay after the last start of one of its replicas, so that
the release can be started again."""

Ask = Callable[..., list[dict[str, Any]]]
"""Returns the rows of a query with these named parameters."""

_OWNER: LiteralString = """
    SELECT o.rolname AS owner, t.rolname AS trusted,
        o.rolsuper OR t.oid IS NOT DISTINCT FROM o.oid AS is_trusted
    FROM pg_catalog.pg_namespace f
    JOIN pg_catalog.pg_roles o ON o.oid = f.nspowner
    LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'progressor'
    LEFT JOIN pg_catalog.pg_roles t ON t.oid = n.nspowner
    WHERE f.nspname = %(schema)s"""

_CONTENTS: LiteralString = """
    SELECT p.proname AS name, p.prosrc AS source, p.prosecdef AS is_definer,
        p.proowner = n.nspowner AS is_owned, l.lanname = 'sql' AS is_sql,
        coalesce(p.proconfig, '{}') AS settings
    FROM pg_catalog.pg_proc p
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    JOIN pg_catalog.pg_language l ON l.oid = p.prolang
    WHERE n.nspname = %(schema)s"""

# The functions would find a table or a view here before those of the schema progressor.
_RELATIONS: LiteralString = """
    SELECT c.relname AS name
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relkind <> 'c'
    ORDER BY c.relname"""

# The row comes first: a removal of the schema has deleted the row, or leaves both alone.
_USE: LiteralString = """
    INSERT INTO progressor.function_schemas AS f (schema, used_at)
    VALUES (%s, clock_timestamp())
    ON CONFLICT (schema) DO UPDATE SET used_at = excluded.used_at"""

_NOTE_UNKNOWN: LiteralString = """
    INSERT INTO progressor.function_schemas (schema, used_at)
    SELECT f.nspname, clock_timestamp()
    FROM pg_catalog.pg_namespace f
    JOIN pg_catalog.pg_namespace n ON n.nspname = 'progressor' AND n.nspowner = f.nspowner
    WHERE f.nspname ~ '^progressor_[0-9a-f]{12}$'
    ON CONFLICT DO NOTHING"""

_FORGET: LiteralString = """
    DELETE FROM progressor.function_schemas f
    WHERE f.schema <> %s
        AND f.used_at < clock_timestamp() - %s
        AND NOT EXISTS (SELECT FROM progressor.replicas r WHERE r.functions = f.schema)
    RETURNING f.schema"""

_BODY = re.compile(r"^CREATE FUNCTION (\w+)\(.*?AS \$\$(.*?)\$\$;", re.MULTILINE | re.DOTALL)


def fault_of(functions: Functions, ask: Ask) -> str:
    """Return what is wrong with the schema of these functions; "" if nothing is.

    It need not exist: then nothing is wrong.
    """
    owners = ask(_OWNER, schema=functions.schema)
    if not owners:
        return ""
    [owner] = owners
    if not owner["is_trusted"]:
        return (
            f"it belongs to the role {owner['owner']}, not to {owner['trusted']}, who owns the "
            "tables"
        )
    if relations := ask(_RELATIONS, schema=functions.schema):
        return f"it has relations, which this release does not create: {_listed(relations)}"
    return _difference(functions, ask(_CONTENTS, schema=functions.schema))


def is_deployed(functions: Functions, ask: Ask) -> bool:
    return bool(ask(_OWNER, schema=functions.schema))


def note_use(connection: psycopg.Connection[Any], functions: Functions) -> None:
    """Keep the functions of this release from being removed for KEPT from now on."""
    connection.execute(_USE, [functions.schema])


def remove_unused(connection: psycopg.Connection[Any], functions: Functions) -> list[str]:
    """Remove the functions of releases that no replica has used for KEPT; return their schemas.

    The caller's transaction has the rights of the owner.
    """
    connection.execute(_NOTE_UNKNOWN)
    removed = [row[0] for row in connection.execute(_FORGET, [functions.schema, KEPT])]
    for schema in removed:
        drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE")
        connection.execute(drop.format(sql.Identifier(schema)))
    return removed


def _difference(functions: Functions, rows: Iterable[Mapping[str, Any]]) -> str:
    expected = dict(found for text in functions.texts for found in _BODY.findall(text))
    path = f"search_path={functions.search_path}"
    there: dict[str, str] = {}
    changed = []
    for row in rows:
        name = row["name"]
        is_ours = row["is_owned"] and not row["is_definer"] and name not in there
        if not is_ours or not (row["is_sql"] or path in row["settings"]):
            changed.append(name)
        there[name] = row["source"]
    changed += [name for name in expected if name in there and there[name] != expected[name]]
    parts = {
        "missing": sorted(expected.keys() - there.keys()),
        "added": sorted(there.keys() - expected.keys()),
        "changed": sorted(set(changed)),
    }
    return "; ".join(f"{word}: {_shortened(names)}" for word, names in parts.items() if names)


def _listed(rows: Iterable[Mapping[str, Any]]) -> str:
    return _shortened([row["name"] for row in rows])


def _shortened(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
