"""Statements of the hot path, sent past the driver's cursors straight through libpq.

A cursor takes the statement apart, looks for a dumper of each parameter and steps a generator for
each move of the socket. A statement that is always the same, with columns that know their format,
needs none of it. The admission of one call costs this process 150 us instead of 190 so, and
PostgreSQL, which parses and plans the statement once per connection instead of each time, a quarter
less (2026-11, two busy cores, Python 3.11, psycopg 3.3, PostgreSQL 18).

What holds:

- One statement, in autocommit or in the transaction that its connection is in; parameters and
  results in PostgreSQL's binary format. Errors are the driver's own.
- A connection comes back idle or closed, never in the middle of an answer: a statement that was
  given up is cancelled, and its connection closed.
- The statement is prepared by name. That is no state on which anything rests: behind a pooler that
  lends a server's session for one transaction the name is missing, or taken, and PostgreSQL says so
  before it does anything. From then on the statement goes without.
"""

import asyncio
import contextlib
import datetime as dt
import hashlib
import itertools
import re
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from progressor.storage.arrays import Column, instant
from progressor.storage.pools import Connection

CANCEL_SECONDS = 1.0
"""For the request to cancel a statement; it takes a connection of its own."""

Argument = Column | dt.datetime | int | float | bool | None

_NAMELESS = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
)
_ANSWERS = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
_SCALARS: Mapping[type, Callable[[Any], bytes]] = {
    int: struct.Struct("!q").pack,
    float: struct.Struct("!d").pack,
    bool: struct.Struct("!?").pack,
    dt.datetime: lambda value: struct.pack("!q", instant(value)),
}


class Direct:
    """A statement with its parameters as ``%b``, each of a type that its place decides."""

    # What belongs to a connection, beside it: the class is the driver's. A name tells the text.
    _prepared: ClassVar[weakref.WeakKeyDictionary[Connection, set[bytes]]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, statement: bytes) -> None:
        """Send nothing yet."""
        numbers = itertools.count(1)
        self._text = re.sub(rb"%b", lambda _: b"$%d" % next(numbers), statement)
        assert b"%" not in self._text, f"a parameter that is not %b: {self._text!r}"
        self._formats = [Format.BINARY] * (next(numbers) - 1)
        digest = hashlib.blake2b(self._text, digest_size=8).hexdigest()
        self._name = f"progressor_{digest}".encode()
        self._prepares = True

    async def execute(
        self, connection: Connection, arguments: Sequence[Argument]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of one execution.

        If it is cancelled, whether the statement was done is unknown, and the connection is closed.

        Args:
            connection: Nobody else may use it meanwhile.
            arguments: A column for an array; an int for a ``bigint``, a float for a ``double
                precision``, an aware datetime for a ``timestamptz``.

        Raises:
            psycopg.Error: As a cursor would.
            struct.error: No column can hold a value; nothing was sent.
        """
        parameters = [_encoded(argument) for argument in arguments]
        result = None
        if self._prepares:
            try:
                result = await self._execute_prepared(connection, parameters)
            except _NAMELESS:
                self._prepares = False
        if result is None:
            result = await _answer(
                connection,
                lambda: connection.pgconn.send_query_params(
                    self._text, parameters, None, self._formats, Format.BINARY
                ),
            )
        transformer = Transformer(connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    async def _execute_prepared(
        self, connection: Connection, parameters: Sequence[bytes | None]
    ) -> PGresult:
        pgconn = connection.pgconn
        names = self._prepared.setdefault(connection, set())
        if self._name not in names:
            await _answer(connection, lambda: pgconn.send_prepare(self._name, self._text))
            names.add(self._name)
        return await _answer(
            connection,
            lambda: pgconn.send_query_prepared(
                self._name, parameters, self._formats, Format.BINARY
            ),
        )


def _encoded(argument: Argument) -> bytes | None:
    if argument is None:
        return None
    if isinstance(argument, Column):
        return argument.dump()
    return _SCALARS[type(argument)](argument)


async def _answer(connection: Connection, send: Callable[[], None]) -> PGresult:
    """Send a command and return its result, or raise its error."""
    if connection.closed:
        raise psycopg.OperationalError("the connection is closed")
    send()
    try:
        results = await _Exchange(connection.pgconn).results()
    finally:
        if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            await _abandon(connection)
    result = results[-1]
    if result.status not in _ANSWERS:
        raise psycopg.errors.error_from_result(result, connection.info.encoding)
    return result


class _Exchange:
    """A command on its way out and its answer on its way in."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._results: list[PGresult] = []
        self._complete: asyncio.Future[list[PGresult]]

    async def results(self) -> list[PGresult]:
        """Return all that PostgreSQL answers to the command that was sent."""
        loop, descriptor = asyncio.get_running_loop(), self._pgconn.socket
        self._complete = loop.create_future()
        # What does not fit into the socket's buffer waits until PostgreSQL has read some, which it
        # may not do before we have read what it has to say.
        unsent = self._pgconn.flush()
        loop.add_reader(descriptor, self._move, self._read)
        if unsent:
            loop.add_writer(descriptor, self._move, self._write)
        try:
            return await self._complete
        finally:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)

    def _move(self, what: Callable[[], None]) -> None:
        try:
            what()
        except psycopg.Error as error:
            if not self._complete.done():
                self._complete.set_exception(error)

    def _write(self) -> None:
        if not self._pgconn.flush():
            asyncio.get_running_loop().remove_writer(self._pgconn.socket)

    def _read(self) -> None:
        pgconn = self._pgconn
        pgconn.consume_input()
        # Nobody listens on these connections; what came nevertheless must not pile up.
        while pgconn.notifies():
            pass
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if not self._complete.done():
                    self._complete.set_result(self._results)
                return
            self._results.append(result)


async def _abandon(connection: Connection) -> None:
    """Close a connection whose answer nobody waits for, and stop what it was to answer."""
    try:
        with contextlib.suppress(psycopg.Error):
            await connection.cancel_safe(timeout=CANCEL_SECONDS)
    finally:
        connection.pgconn.finish()
