"""Connections: three bulkheads, and the one place where the driver's errors become ours.

*front* serves requests (admissions, reads), *worker* settlements and claims, *scan* the scanners: a
flood of requests cannot keep steps from settling. Everything runs in autocommit, one statement a
transaction, and keeps no session state, so a transaction-mode pooler may stand in between.

What becomes of an error, by its SQLSTATE. *Again* is within the same batch, up to
CONFLICT_ATTEMPTS_MAX times at once; *later* is after a pause, see ``storage/__init__``.

| SQLSTATE | such as | our error | request | settlement | claim, scan, beat |
| --- | --- | --- | --- | --- | --- |
| 40P01 40001 | deadlock | Conflict | again, then error | again, then later | later |
| 55P03 | a row locked | Locked | the others first, then error | the others first | the others |
| 08 40 53 55 57 58 | down, full | Unavailable | error | later | later |
| 25P03 25P04 | session ended | Unavailable | error | later | later |
| none | lost, timed out | Unavailable | error | later | later |
| none | login refused | Schema | error | later | later |
| none | all too busy | Overloaded | error | later | later |
| 25006 | demoted | ReadOnly | error | later, elsewhere | later, elsewhere |
| 0A 28 3D 3F 42 | no function | Schema | error | later | later |
| XX000 | internal | Refused, doubtful | again, then refused | again, then refused | later |
| 22 23 21 54 P0 XX001 | a value | Refused | fails alone | breaks its process | later |

*Error* is STORAGE_UNAVAILABLE with RetryInfo, or OVERLOADED if all connections are too busy: the
request may or may not have been done; repeating it with its idempotency key gives the result.
*Later* has no limit: a decided settlement is written once PostgreSQL answers. After each failure a
shard halves its batches, in case they were too large for PostgreSQL. A *refused* batch is split
until the faulty item is alone. Of a batch with *locked* rows, the other items are written, and the
locked ones are parked until the other session releases them (`shard`).

Classes 0A .. 42 are caused by an operator: functions or tables dropped, privileges revoked, a
password changed. An engine exits with such an error at its start (`migrations`). Later no request
is at fault, and refusing them one by one would break every process with a running step.
`progressor migrate`, or the start of any replica, brings the functions back.
"""

import asyncio
import contextlib
import dataclasses
import os
import re
import socket
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import psycopg_pool

from progressor import errors
from progressor.settings.sections import Database
from progressor.storage.postgres.rows import arrays
from progressor.storage.postgres.writer import (
    bound_idle,
    bound_path,
    connection_string,
    insists_on_writes,
    refuse_read_only,
)
from progressor.telemetry.instruments import Labels
from progressor.telemetry.metrics.registry import Metrics

RECONNECT_SECONDS = 2.0
"""How long a pool tries to replace a lost connection; it restarts while callers are waiting."""

WAITING_MAX = 5_000
"""Who may wait for a connection of a pool."""

CANCEL_SECONDS = 1.0
"""For the request to cancel a statement, which takes a connection of its own."""

CLOSE_SECONDS = 1.0
"""For the attempts to connect that are under way when a pool is closed."""

HOLDS_MAX = 3
"""Statement timeouts after which a connection that is still lent is taken for a stalled one."""

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

ConnectionCheck = Callable[[Connection], Awaitable[None]]
"""Called with a new connection; closes one that must not be used, and raises."""

_BY_CLASS = (
    (psycopg.errors.DeadlockDetected, errors.StorageConflictError),
    (psycopg.errors.SerializationFailure, errors.StorageConflictError),
    (psycopg.errors.LockNotAvailable, errors.StorageLockedError),
    (psycopg.errors.ReadOnlySqlTransaction, errors.StorageReadOnlyError),
    (psycopg_pool.TooManyRequests, errors.StorageOverloadedError),
)
# A connection that is in one of these states, or lost, is useless to the next user too.
_TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    psycopg_pool.PoolTimeout,
    psycopg_pool.PoolClosed,
)
# The driver's base classes follow the SQLSTATE but for a few: these are about no value.
_SCHEMA_CLASSES = frozenset({"0A", "28", "3D", "3F", "42"})
_TOO_LARGE = "54"
_INTERNAL = "XX000"
_TOO_MANY_TIMERS = "PT001"
"""Raised by insert_timers."""

# libpq gives a refused connection no SQLSTATE. A server whose messages are in another language is
# taken for one that is away.
_REFUSED_CONNECTION = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|(?:role|database) \".*\" does not exist|permission denied for database"
    r"|role \".*\" is not permitted to log in"
    r"|server does not support SSL|certificate verify failed|root certificate file"
)

_ALLOWED = """
    SELECT current_setting('max_connections')::integer
         - current_setting('superuser_reserved_connections')::integer
         - coalesce(current_setting('reserved_connections', true)::integer, 0)
"""

COMMITTING = "SELECT pid FROM pg_stat_activity WHERE pid = ANY (%s) AND wait_event = 'SyncRep'"
"""Of these sessions, those whose commits wait for a synchronous standby."""

_FUNCTION_LINE = re.compile(r"^PL/pgSQL function .* line \d+", re.MULTILINE)
_PLACES_MAX = 3
_ROW = re.compile(r"(\(\d+,\d+\)).*?[\"«„“](\w+)")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours.

    Raises:
        StorageConflictError: PostgreSQL undid the transaction for the sake of another; it may be
            repeated at once.
        StorageUnavailableError: The connection, the server or the pool gave way; whether a write
            in flight was done is unknown. Of these, StorageReadOnlyError, StorageSchemaError and
            StorageOverloadedError say more, and nothing was written.
        StorageRefusedError: PostgreSQL refused a value; nothing was written.
    """
    try:
        yield
    except TimeoutError as error:
        raise errors.StorageUnavailableError("the statement timed out") from error
    except psycopg.Error as error:
        ours = _ours(error)
        if isinstance(ours, errors.StorageRefusedError):
            # The log shows where an error came from, and the driver's words quote what was refused.
            raise ours from None
        raise ours from error


class before_sending:  # noqa: N801  it reads as a word of the language
    """Turn whatever is raised while a batch's columns are built into a refusal of the batch.

    PostgreSQL has seen nothing of it. Which item is at fault, the batch is split to find out; the
    others must not fail with it, and the group commit must not end.

    A class, since contextlib's generator takes three times as long, and each item passes one.

    Raises:
        StorageRefusedError: The columns cannot be built.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            raise errors.StorageRefusedError(f"{type(error).__name__}: {error}") from error


def _ours(error: psycopg.Error) -> errors.StorageError:
    why, state = _why(error), error.sqlstate or ""
    for theirs, ours in _BY_CLASS:
        if isinstance(error, theirs):
            found = ours(why)
            if isinstance(found, errors.StorageLockedError):
                found.row = _row_of(error)
            return found
    if state[:2] in _SCHEMA_CLASSES or (not state and _REFUSED_CONNECTION.search(why)):
        return errors.StorageSchemaError(why)
    if isinstance(error, _TRANSIENT) and state[:2] != _TOO_LARGE:
        return errors.StorageUnavailableError(why)
    if state == _TOO_MANY_TIMERS:
        return errors.TooManyTimersError(why)
    return errors.StorageRefusedError(why, doubtful=state == _INTERNAL)


def _row_of(error: psycopg.Error) -> tuple[str, str] | None:
    """Return the table and the place of the row for which a statement has waited."""
    # "while updating tuple (0,7) in relation "gates"", in the language of the server.
    found = _ROW.search(error.diag.context or "")
    return None if found is None else (found[2], found[1])


def _why(error: psycopg.Error) -> str:
    """Return what PostgreSQL said, and in which function, without the data that it may quote."""
    primary = error.diag.message_primary
    if primary is None:
        return str(error).strip() or type(error).__name__
    places = _FUNCTION_LINE.findall(error.diag.context or "")
    return "; ".join((primary, *places[:_PLACES_MAX]))


class BoundedConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection on which a statement that is given up ends within CANCEL_SECONDS.

    What may write is never cancelled. A commit that waits for a synchronous standby would stop
    waiting: PostgreSQL would commit on the primary alone, others would see it and acknowledge it,
    and a failover would lose it. So the connection is closed; PostgreSQL goes on with the
    statement, and shows nothing of it before the standby has it. What became of it is unknown.

    A read is cancelled, so that PostgreSQL does no useless work. The driver asks for that for
    five seconds, and waits for five more. Without an answer, that is how long a drain would take
    for each.
    """

    reads_only = False
    """Whether the current user of the connection only reads."""

    hung_up = False
    """Whether its socket was shut down: what had arrived before can still be read."""

    async def cancel_safe(self, *, timeout: float = CANCEL_SECONDS) -> None:
        """Close the connection; for a reader, cancel the statement and close only if that fails."""
        if not self.reads_only:
            _hang_up(self)
            return
        try:
            await super().cancel_safe(timeout=min(timeout, CANCEL_SECONDS))
        except psycopg.Error:
            _hang_up(self)
            raise


async def _accept(_connection: Connection) -> None:
    """Take any connection."""


class Pool(psycopg_pool.AsyncConnectionPool[Connection]):
    """A pool that learns from one lost connection about the others.

    Where PostgreSQL has gone, or was demoted, every connection of the pool leads nowhere, and each
    would cost its next user an error and a pause. So the first that comes back closed makes
    the pool replace all that are as old as it.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        patience: float,
        check_new: ConnectionCheck = _accept,
        **options: Any,  # noqa: ANN401  they are the driver's
    ) -> None:
        """Open nothing.

        Args:
            conninfo: How to connect, see ``writer``.
            patience: Seconds after which the socket of a connection that is still lent is closed:
                what stands still on the way to PostgreSQL may otherwise stand still for ever.
            check_new: Of each new connection, before it is used.
            options: Those of the driver's pool.
        """
        self._patience = patience
        self._check_new = check_new
        self._insists = insists_on_writes(conninfo)
        self._generation = 0
        self._lent: set[Connection] = set()
        self._pids: weakref.WeakKeyDictionary[Connection, int] = weakref.WeakKeyDictionary()
        # Of sessions whose connections came back closed: their commits may wait for a standby.
        self._given_up: set[int] = set()
        self._generations: weakref.WeakKeyDictionary[Connection, int] = weakref.WeakKeyDictionary()
        super().__init__(
            conninfo, connection_class=BoundedConnection,
            configure=self._prepare, reconnect_failed=_try_again, open=False, **options,
        )  # fmt: skip

    @property
    def lent_count(self) -> int:
        return len(self._lent)

    @contextlib.asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncIterator[Connection]:
        """Lend a connection, for as long as its `patience`."""
        async with super().connection(timeout) as connection:
            loop = asyncio.get_running_loop()
            watch = loop.call_later(self._patience, _hang_up, connection)
            self._lent.add(connection)
            try:
                yield connection
            finally:
                self._lent.discard(connection)
                watch.cancel()

    async def putconn(self, conn: Connection) -> None:
        """Take a connection back, and drop the others if it is closed."""
        if isinstance(conn, BoundedConnection) and conn.hung_up and not conn.closed:
            # The reply came just before the disconnect; the next user would find it broken.
            await conn.close()
        if conn.closed:
            if conn in self._pids:
                self._given_up.add(self._pids[conn])
            if self._generations.get(conn) == self._generation:
                self._generation += 1
                await self.drain()
        await super().putconn(conn)

    async def refuse_too_many_waiting(self, connection: Connection) -> None:
        """Ask a connection, where many were closed, how many of their sessions still commit.

        While a synchronous standby is down, each commit that was given up keeps its session.
        Without a bound they would take all the connections that PostgreSQL has.

        Raises:
            StorageUnavailableError: As many as the pool may have connections wait for a standby.
        """
        if len(self._given_up) < self.max_size:
            return
        cursor = await connection.execute(COMMITTING, [list(self._given_up)])
        self._given_up.intersection_update([row[0] for row in await cursor.fetchall()])
        if len(self._given_up) >= self.max_size:
            raise errors.StorageUnavailableError(
                f"{len(self._given_up)} abandoned commits still wait for a standby"
            )

    async def leave(self) -> None:
        """Replace all connections, with those that are lent: what is under way on them fails."""
        for connection in self._lent:
            _hang_up(connection)
        self._generation += 1
        await self.drain()

    async def _prepare(self, connection: Connection) -> None:
        if self._insists:
            await refuse_read_only(connection)
        await bound_idle(connection)
        await self._check_new(connection)
        await bound_path(connection)
        self._generations[connection] = self._generation
        self._pids[connection] = connection.info.backend_pid
        arrays.register(connection)
        # A pooler may lend us a session that another client listens on; messages would pile up.
        connection.add_notify_handler(lambda _: None)


async def _try_again(pool: psycopg_pool.AsyncConnectionPool[Any]) -> None:
    """Reconnect if the pool has given up while callers wait: nothing else would restart it."""
    if pool.get_stats().get("requests_waiting", 0):
        await pool.check()


def _hang_up(connection: Connection) -> None:
    """Fail the caller waiting for a reply on a connection: none will come."""
    if isinstance(connection, BoundedConnection):
        connection.hung_up = True
    # By a duplicate: libpq's own descriptor stays its own.
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as ours,
    ):
        ours.shutdown(socket.SHUT_RDWR)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    front: Pool
    worker: Pool
    scan: Pool

    def observed_by(self, metrics: Metrics) -> None:
        """Have metrics read how the pools are doing, from now on; from any thread."""
        metrics.pool_connections.read_from(self._connections)
        metrics.pool_waiting.read_from(lambda: self._stats("requests_waiting"))
        metrics.pool_wait.read_from(lambda: self._stats("requests_wait_ms"))

    def _connections(self) -> Iterator[tuple[Labels, float]]:
        for pool in (self.front, self.worker, self.scan):
            # Those that are being opened are in neither.
            yield (pool.name, "used"), pool.lent_count
            yield (pool.name, "idle"), pool.get_stats().get("pool_available", 0)

    def _stats(self, name: str) -> Iterator[tuple[Labels, float]]:
        for pool in (self.front, self.worker, self.scan):
            yield (pool.name,), pool.get_stats().get(name, 0)

    async def leave(self) -> None:
        """Reconnect, because the server has become read-only."""
        for pool in (self.front, self.worker, self.scan):
            await pool.leave()

    async def close(self) -> None:
        """Close all connections; statements in flight are given up."""
        async with asyncio.TaskGroup() as group:
            for pool in (self.front, self.worker, self.scan):
                group.create_task(pool.close(CLOSE_SECONDS), name=f"close {pool.name}")


async def open_pools(config: Database, dsn: str, *, check_new: ConnectionCheck = _accept) -> Pools:
    """Return pools that connect in the background, so that PostgreSQL may still be down."""

    def pool(name: str, size: int) -> Pool:
        return Pool(
            connection_string(config, dsn, application=f"progressor {name}"),
            patience=HOLDS_MAX * config.statement_timeout.total_seconds(),
            check_new=check_new,
            # Statements are calls of functions whose plans live in PL/pgSQL; preparing them by name
            # would be session state, which a pooler takes away. (`direct` prepares, and does
            # without where that happens.)
            kwargs={"autocommit": True, "prepare_threshold": None},
            min_size=min(1, size),
            max_size=size,
            max_waiting=WAITING_MAX,
            name=name,
            timeout=config.connect_timeout.total_seconds(),
            # The pool doubles the pause between its attempts without end.
            reconnect_timeout=RECONNECT_SECONDS,
        )

    pools = Pools(
        front=pool("front", config.front_connections_max),
        worker=pool("worker", config.worker_connections_max),
        scan=pool("scan", config.scan_connections_max),
    )
    for each in (pools.front, pools.worker, pools.scan):
        await each.open(wait=False)
    return pools


@contextlib.asynccontextmanager
async def connection_of(pool: Pool, *, reads_only: bool = False) -> AsyncIterator[Connection]:
    """Lend a connection for one statement, with the driver's errors translated.

    A statement that is given up is cancelled if it `reads_only`; see BoundedConnection.
    """
    with translated():
        async with pool.connection() as connection:
            heed_cancellation()
            if isinstance(connection, BoundedConnection):
                connection.reads_only = reads_only
                if not reads_only:
                    await pool.refuse_too_many_waiting(connection)
            try:
                yield connection
            except (errors.StorageReadOnlyError, psycopg.errors.ReadOnlySqlTransaction):
                # It leads to a server that was demoted; another may be the primary by now.
                await connection.close()
                raise
    heed_cancellation()


def heed_cancellation() -> None:
    """Raise CancelledError where the driver has swallowed it.

    It waits by asyncio.wait_for, which in Python 3.11 forgets a cancellation that comes together
    with the answer: a loop that was to end would go on for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def connections_allowed(database: Database, dsn: str) -> int:
    """Return how many connections PostgreSQL gives to ordinary roles in all. Blocks.

    Raises:
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    conninfo = connection_string(database, dsn, application="progressor capacity")
    with translated(), psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(_ALLOWED).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return int(row[0])
