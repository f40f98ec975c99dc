"""Statements of the hot path, sent past the driver's cursors straight through libpq.

A cursor takes the statement apart, looks for a dumper of each parameter and steps a generator for
each move of the socket. A statement that is always the same, with columns that know their format,
needs none of it. The admission of one call costs this process 150 us instead of 190 so, and
PostgreSQL, which parses and plans the statement once per connection instead of each time, a quarter
less (2026-11, two busy cores, Python 3.11, psycopg 3.3, PostgreSQL 18).

Statements of one connection go out one behind the other, each before the answer to the last is back
(`_Pipeline`): PostgreSQL goes on without waiting for this process to wake up, to take note, and to
put the next one together. 200 self-driven steps 9,900 -> 11,300/s so, 50 of them 7,700 -> 8,100/s
(2026-11, two busy cores, medians of five).

What holds:

- One statement, in autocommit or in the transaction that its connection is in; parameters and
  results in PostgreSQL's binary format. Errors are the driver's own.
- A connection comes back idle or closed, never in the middle of an answer: of a statement that was
  given up the connection is closed. It is not cancelled, since all that goes this way writes: see
  `pools.BoundedConnection`.
- The statement is prepared by name. Nothing depends on that state: behind a pooler that
  lends a server's session for one transaction the name is missing, or taken, and PostgreSQL says so
  before it does anything. From then on the statement goes without.
"""

import asyncio
import collections
import datetime as dt
import hashlib
import itertools
import re
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from progressor.storage.postgres.functions import Function
from progressor.storage.postgres.pools import Connection, before_sending
from progressor.storage.postgres.rows.arrays import Column, instant

LOOK_SECONDS = 0.25
"""How often to look after statements under way, whether or not anything was heard."""

Argument = bytes | Column | dt.datetime | int | float | bool | None

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

R = TypeVar("R")


class Direct(Generic[R]):
    """A function called past the driver; the type of each argument decides how it is sent."""

    def __init__(self, function: Function[R]) -> None:
        self._function = function
        self.arguments = function.arguments
        self._places = {
            name: (place, column) for place, (name, column) in enumerate(self.arguments.items())
        }
        self._make_row = function.make_row
        numbers = itertools.count(1)
        self._text = re.sub(rb"%b", lambda _: b"$%d" % next(numbers), function.statement)
        assert b"%" not in self._text, f"a parameter that is not %b: {self._text!r}"
        self._formats = [Format.BINARY] * (next(numbers) - 1)
        digest = hashlib.blake2b(self._text, digest_size=8).hexdigest()
        self._name = f"progressor_{digest}".encode()
        self._prepares = True

    def bind(self, **named: Any) -> list[bytes | None]:  # noqa: ANN401  as the file says
        """Return the arguments of an execution, as `Function.bind`, and encoded already.

        Raises:
            TypeError: An argument is missing or unknown.
        """
        if named.keys() != self.arguments.keys():
            self._function.bind(**named)
        return self.bind_some(named)

    def bind_some(self, given: Mapping[str, Any]) -> list[bytes | None]:
        """Return the same where what is not named is null."""
        parameters: list[bytes | None] = [None] * len(self._places)
        for name, value in given.items():
            if value is not None:
                place, column = self._places[name]
                parameters[place] = _encoded(value) if column is None else column.encoded(value)
        return parameters

    async def execute(self, connection: Connection, arguments: Sequence[Argument]) -> list[R]:
        """Return the rows of one execution.

        If it is cancelled, whether the statement was done is unknown, and the connection is closed.

        Args:
            connection: Used by nothing else meanwhile, except other executions of this kind:
                they are done in the order in which they were asked for.
            arguments: From `bind`. Others: a column for an array; an int for a ``bigint``, a float
                for a ``double precision``, an aware datetime for a ``timestamptz``.

        Raises:
            psycopg.Error: As a cursor would.
            StorageRefusedError: No column can hold a value; nothing was sent.
        """
        with before_sending():
            parameters = [_encoded(argument) for argument in arguments]
        pipeline = _Pipeline.of(connection)
        result = None
        if self._prepares:
            try:
                result = await self._execute_prepared(pipeline, parameters)
            except _NAMELESS:
                self._prepares = False
        if result is None:
            result = await pipeline.answer(
                lambda pgconn: pgconn.send_query_params(
                    self._text, parameters, None, self._formats, Format.BINARY
                ),
            )
        transformer = pipeline.transformer
        transformer.set_pgresult(result)
        try:
            return transformer.load_rows(0, result.ntuples, self._make_row)
        finally:
            transformer.set_pgresult(None)

    async def _execute_prepared(
        self, pipeline: "_Pipeline", parameters: Sequence[bytes | None]
    ) -> PGresult:
        if self._name not in pipeline.prepared:
            await pipeline.prepare(self._name, self._text)
        return await pipeline.answer(
            lambda pgconn: pgconn.send_query_prepared(
                self._name, parameters, self._formats, Format.BINARY
            ),
        )


def _encoded(argument: Argument) -> bytes | None:
    if argument is None or isinstance(argument, bytes):
        return argument
    if isinstance(argument, Column):
        return argument.encoded(argument)
    return _SCALARS[type(argument)](argument)


class _Pipeline:
    """The statements under way on a connection: the next goes out before the last has come back.

    Each ends with a synchronisation of its own, so that each is a transaction of its own, and an
    error of one does not touch the next. While none is under way, the connection is in the
    ordinary mode, and cursors can use it.
    """

    # What belongs to a connection, beside it: the class is the driver's.
    _known: ClassVar[weakref.WeakKeyDictionary[Connection, "_Pipeline"]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, connection: Connection) -> None:
        self.prepared: set[bytes] = set()
        # To look for the loaders of a row takes twice as long as to read it. Of the adapters alone,
        # since a reference to the connection would keep it: text is UTF-8, and instants are in UTC.
        self.transformer = Transformer(connection.adapters)
        self._preparing = asyncio.Lock()
        self._pgconn = connection.pgconn
        self._descriptor = -1
        self._looks = False
        self._answers: collections.deque[asyncio.Future[PGresult]] = collections.deque()
        self._result: PGresult | None = None

    @classmethod
    def of(cls, connection: Connection) -> "_Pipeline":
        pipeline = cls._known.get(connection)
        if pipeline is None:
            pipeline = cls._known[connection] = cls(connection)
        return pipeline

    async def prepare(self, name: bytes, text: bytes) -> None:
        """Have a statement prepared, once for all who ask meanwhile."""
        async with self._preparing:
            if name not in self.prepared:
                await self.answer(lambda pgconn: pgconn.send_prepare(name, text))
                self.prepared.add(name)

    async def answer(self, send: Callable[[PGconn], None]) -> PGresult:
        answer = self._send(send)
        try:
            result = await answer
        except asyncio.CancelledError:
            if answer.cancelled():
                self._break(psycopg.OperationalError("a statement on the connection was abandoned"))
            raise
        if result.status not in _ANSWERS:
            raise psycopg.errors.error_from_result(result)
        return result

    def _send(self, send: Callable[[PGconn], None]) -> asyncio.Future[PGresult]:
        pgconn, loop = self._pgconn, asyncio.get_running_loop()
        if pgconn.status == ConnStatus.BAD:
            raise psycopg.OperationalError("the connection is closed")
        if not self._answers:
            pgconn.enter_pipeline_mode()
            self._descriptor = pgconn.socket
            loop.add_reader(self._descriptor, self._move, self._read)
            if not self._looks:
                self._looks = True
                loop.call_later(LOOK_SECONDS, self._look)
        answer: asyncio.Future[PGresult] = loop.create_future()
        self._answers.append(answer)
        try:
            send(pgconn)
            pgconn.pipeline_sync()
            # What does not fit into the socket's buffer waits until PostgreSQL has read some, which
            # it may not do before we have read what it has to say.
            if pgconn.flush():
                loop.add_writer(self._descriptor, self._move, self._write)
        except psycopg.Error as error:
            self._break(error)
        return answer

    def _look(self) -> None:
        """Read whether or not anything was heard.

        libuv stops to poll a socket that was reset, as it is when PostgreSQL ends with statements
        unread, and uvloop does not notify the reader.
        """
        self._looks = bool(self._answers)
        if self._looks:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
            self._move(self._read)

    def _move(self, what: Callable[[], None]) -> None:
        try:
            what()
        except psycopg.Error as error:
            self._break(error)

    def _write(self) -> None:
        if not self._pgconn.flush():
            asyncio.get_running_loop().remove_writer(self._descriptor)

    def _read(self) -> None:
        pgconn = self._pgconn
        pgconn.consume_input()
        # No one listens on these connections; stray notifications must not pile up.
        while pgconn.notifies():
            pass
        while self._answers and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                self._complete()
            else:
                # The last one counts: what was done may still fail when it is to be committed.
                self._result = result

    def _complete(self) -> None:
        answer, result = self._answers.popleft(), self._result
        self._result = None
        if not self._answers:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._pgconn.exit_pipeline_mode()
        assert result is not None, "a command was answered without a result"
        if not answer.done():
            answer.set_result(result)

    def _break(self, error: psycopg.Error) -> None:
        """Close the connection; the outcome of the commands in progress is unknown."""
        if self._answers:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._descriptor)
            loop.remove_writer(self._descriptor)
        result, self._result = self._result, None
        self._pgconn.finish()
        while self._answers:
            answer = self._answers.popleft()
            if answer.done():
                pass
            elif result is None or result.status in _ANSWERS:
                # Rows that are not followed by a Sync response do not confirm a commit.
                answer.set_exception(error)
            else:
                # An error sent before the hang-up says more than the hang-up.
                answer.set_result(result)
            result = None
