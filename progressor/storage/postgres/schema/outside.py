"""Files that run outside a transaction, as CREATE INDEX CONCURRENTLY must.

Their first line is MARKER. Each statement must be safe to repeat, since a file that was interrupted
begins anew. The index of a build that failed is invalid: writes keep it up to date, no statement
uses it, and IF NOT EXISTS would take it for done. So it is dropped before the file runs.
"""

import concurrent.futures
import re
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from progressor import errors
from progressor.storage.postgres.schema.lock_waits import Wait

MARKER = "-- outside a transaction\n"

LOOK_SECONDS = 1.0
"""How often to say how far a statement is."""

_Connection = psycopg.Connection[tuple[Any, ...]]

_COMMENT = re.compile(r"--.*")
_END = re.compile(r";[ \t]*$", re.MULTILINE)
_BUILT = re.compile(r"\bINDEX CONCURRENTLY (?:IF NOT EXISTS )?(?:progressor\.)?(\w+)")

_INVALID: LiteralString = """
    SELECT c.relname
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'progressor' AND NOT (i.indisvalid AND i.indisready) AND c.relname = ANY (%s)
    ORDER BY c.relname"""

_PROGRESS: LiteralString = """
    SELECT p.phase, p.blocks_done, p.blocks_total, p.current_locker_pid
    FROM pg_catalog.pg_stat_progress_create_index p
    WHERE p.pid = %s"""


def statements_of(text: str) -> Iterator[str]:
    """Return the statements of a file, each of which ends with a semicolon at the end of a line."""
    for part in _END.split(_COMMENT.sub("", text)):
        if part.strip():
            yield part.strip()


def run(
    connection: _Connection, onlooker: _Connection, text: str, *, name: str, wait: Wait
) -> None:
    """Run the statements of a file one by one; `onlooker` is another connection.

    Raises:
        MigrationError: An index is invalid in the end.
    """
    built = _BUILT.findall(text)
    for index in _invalid(connection, built):
        drop = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS progressor.{}")
        connection.execute(drop.format(sql.Identifier(index)))
    for statement in statements_of(text):
        _execute(connection, onlooker, statement, name=name, wait=wait)
    if invalid := _invalid(connection, built):
        raise errors.MigrationError(f"{name} has left invalid indexes: {', '.join(invalid)}")


def _execute(
    connection: _Connection, onlooker: _Connection, statement: str, *, name: str, wait: Wait
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="migration") as pool:
        running = pool.submit(connection.execute, statement.encode())
        try:
            while concurrent.futures.wait([running], LOOK_SECONDS).not_done:
                wait(f"{name}: {_progress(onlooker, connection.info.backend_pid)}", 0)
            running.result()
        finally:
            if not running.done():
                connection.cancel_safe()


def _invalid(connection: _Connection, names: list[str]) -> list[str]:
    return [row[0] for row in connection.execute(_INVALID, [names])]


def _progress(onlooker: _Connection, pid: int) -> str:
    row = onlooker.execute(_PROGRESS, [pid]).fetchone()
    if row is None:
        return "running"
    phase, done, total, locker = row
    parts = [phase]
    if total:
        parts.append(f"{done:,} of {total:,} blocks")
    if locker:
        parts.append(f"waiting for the transaction of pid {locker}")
    return ", ".join(parts)
