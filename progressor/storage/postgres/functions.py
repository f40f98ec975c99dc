"""The functions of the hot path, deployed by content.

They live in a schema named after the hash of their texts, created on start if absent: two releases
run side by side on one database, and migrations only ever change tables.
"""

import hashlib
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from progressor.storage.postgres import statements

_LOCK = 7_306_914
_Cursor = psycopg.Cursor[tuple[Any, ...]]


class Functions:
    """The functions of this release and the schema they are in."""

    def __init__(self) -> None:
        """Read the files; touch no database."""
        files = statements.functions()
        assert files, "priv/functions is missing from this installation"
        self._texts = tuple(file.read_text("utf-8") for file in files)
        digest = hashlib.sha256("\0".join(self._texts).encode()).hexdigest()
        self.schema = f"progressor_{digest[:12]}"

    def call(self, name: LiteralString, *, arguments: int) -> bytes:
        """Return a statement that calls a function with so many positional arguments.

        As bytes: psycopg remembers how it read them, and composes a Composed anew each time.
        """
        return (
            sql.SQL("SELECT * FROM {}.{}({})")
            .format(
                sql.Identifier(self.schema),
                sql.Identifier(name),
                sql.SQL(", ").join([sql.SQL("%b")] * arguments),
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
        for text in self._texts:
            cursor.execute(text.encode())
        return True
