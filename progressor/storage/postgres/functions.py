"""The functions of the hot path: read from ``priv/functions``, deployed by content.

They live in a schema named after the hash of their texts, created on start if absent: two releases
run side by side on one database, and migrations only ever change tables.

A file states what is special about its function; `_completed` adds what nearly all have in common.
"""

import hashlib
import re
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from progressor.storage.postgres import statements

_LOCK = 7_306_914

_STANDARD = """\
LANGUAGE plpgsql
SET search_path FROM CURRENT
"""
_BY_INDEX = """\
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
"""
"""What ``BY INDEX`` in a file stands for: one generic plan that reads by key, however many rows the
tables have, and whether or not they have been analysed."""

_FUNCTION = "CREATE FUNCTION "
_BODY = "AS $$\n"
_CONFLICTS = "#variable_conflict "
_SIGNATURE = re.compile(r"^CREATE FUNCTION (\w+)\((.*?)\)$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"--.*")
_Cursor = psycopg.Cursor[tuple[Any, ...]]


class Functions:
    """The functions of this release and the schema they are in; ``texts`` are their definitions."""

    def __init__(self) -> None:
        """Read the files; touch no database."""
        files = statements.functions()
        assert files, "priv/functions is missing from this installation"
        self.texts = tuple(_completed(file.read_text("utf-8")) for file in files)
        self._arities = dict(_arity(text) for text in self.texts if _FUNCTION in text)
        digest = hashlib.sha256("\0".join(self.texts).encode()).hexdigest()
        self.schema = f"progressor_{digest[:12]}"

    def call(self, name: LiteralString) -> bytes:
        """Return a statement that calls a function with all its arguments, by position.

        As bytes: psycopg remembers how it read them, and composes a Composed anew each time.
        """
        assert name in self._arities, f"there is no priv/functions/**/{name}.sql"
        return (
            sql.SQL("SELECT * FROM {}.{}({})")
            .format(
                sql.Identifier(self.schema),
                sql.Identifier(name),
                sql.SQL(", ").join([sql.SQL("%b")] * self._arities[name]),
            )
            .as_bytes()
        )

    def deploy(self, cursor: _Cursor) -> bool:
        """Create the functions if they are absent, in the caller's transaction.

        Safe to do from many replicas at once. Returns whether they were absent.
        """
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        cursor.execute("SELECT FROM pg_namespace WHERE nspname = %s", (self.schema,))
        if cursor.fetchone() is not None:
            return False
        schema = sql.Identifier(self.schema)
        cursor.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        cursor.execute(sql.SQL("SET LOCAL search_path = {}, progressor").format(schema))
        for text in self.texts:
            cursor.execute(text.encode())
        return True


def _completed(text: str) -> str:
    # The few functions in SQL state their language, and are left as they are.
    if _FUNCTION not in text or "\nLANGUAGE " in text:
        return text
    assert _BODY in text, f"cannot find the body of the function in:\n{text}"
    head, body = text.split(_BODY, 1)
    head = head.replace("\nBY INDEX\n", f"\n{_BY_INDEX}")
    conflicts = "" if body.startswith(_CONFLICTS) else f"{_CONFLICTS}use_column\n"
    return f"{head}{_STANDARD}{_BODY}{conflicts}{body}"


def _arity(text: str) -> tuple[str, int]:
    found = _SIGNATURE.search(_COMMENT.sub("", text))
    assert found is not None, f"cannot read the signature of the function in:\n{text}"
    name, arguments = found.groups()
    return name, sum(not it.strip().startswith("OUT ") for it in arguments.split(",") if it.strip())
