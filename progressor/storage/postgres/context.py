"""What every storage class takes from the replica around it."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, LiteralString, TypeVar

from progressor.clock import Clock
from progressor.storage.postgres import attempt
from progressor.storage.postgres.functions import Function, Functions
from progressor.storage.postgres.pools import Connection, Pool, connection_of
from progressor.storage.postgres.rows import records

R = TypeVar("R")

_NOW = "SELECT coalesce(%(now)s::timestamptz, clock_timestamp())"

STARVATION_TIMEOUT = dt.timedelta(seconds=60)
"""How long a task waits for its gates before it goes first, unless configured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StorageContext:
    """A pool, and what the statements sent through it have in common.

    ``replica_id`` is written with what this replica admits, claims and settles.
    """

    pool: Pool
    functions: Functions
    clock: Clock
    replica_id: int
    statement_timeout: dt.timedelta
    starvation_timeout: dt.timedelta = STARVATION_TIMEOUT

    def own_arguments(self) -> dict[str, object]:
        return {
            "now": self.clock.pinned(),
            "replica_id": self.replica_id,
            "starvation_timeout": self.starvation_timeout.total_seconds(),
        }

    def _own_values(self) -> dict[str, object]:
        return self.own_arguments() | {"audit": attempt.current()}

    @contextlib.asynccontextmanager
    async def connection(
        self, *, pool: Pool | None = None, reads_only: bool = False
    ) -> AsyncIterator[Connection]:
        """Lend a connection, of `pool` if given, for statements within the statement timeout.

        Raises:
            StorageError: As `pools.connection_of`.
        """
        async with (
            connection_of(pool or self.pool, reads_only=reads_only) as connection,
            asyncio.timeout(self.statement_timeout.total_seconds()),
        ):
            yield connection

    async def now(self) -> dt.datetime:
        [now] = await self.read(dt.datetime, _NOW)
        return now

    async def call(self, function: Function[R], *keys: object, **named: object) -> list[R]:
        """Call a function and return its rows; raises what `connection` and `Function.rows` raise.

        Its arguments are named; or they are fields of `keys`, or this context's own.
        """
        own = {name: it for name, it in self._own_values().items() if name in function.arguments}
        async with self.connection() as connection:
            return await function.rows(connection, **(own | _named(keys, named)))

    async def read(
        self,
        row: type[R],
        statement: LiteralString,
        *keys: object,
        reads_only: bool = False,
        **named: object,
    ) -> tuple[R, ...]:
        """Return the rows of a statement, whose parameters are given as to `call`."""
        async with self.connection(reads_only=reads_only) as connection:
            return await self.read_on(connection, row, statement, *keys, **named)

    async def execute(self, statement: LiteralString, *keys: object, **named: object) -> int:
        """Carry out a statement, whose parameters are given as to `call`; return its row count."""
        async with self.connection() as connection:
            cursor = await connection.execute(statement, self._own_values() | _named(keys, named))
            return cursor.rowcount

    async def read_on(
        self,
        connection: Connection,
        row: type[R],
        statement: LiteralString,
        *keys: object,
        **named: object,
    ) -> tuple[R, ...]:
        """Do as `read` does, on a connection that is lent already and without its timeout."""
        columns, found = await self.fetch_on(connection, statement, *keys, **named)
        return tuple(map(records.reader(row, columns, whole=True), found))

    async def fetch_on(
        self, connection: Connection, statement: LiteralString, *keys: object, **named: object
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Return the columns and rows of a statement as they are, else as `read_on`."""
        cursor = connection.cursor(binary=True)
        await cursor.execute(statement, self._own_values() | _named(keys, named))
        columns = tuple(column.name for column in cursor.description or ())
        return columns, await cursor.fetchall()


def _named(keys: Iterable[object], named: Mapping[str, object]) -> dict[str, object]:
    """Return parameters by their names, with the fields of `keys`, which are dataclasses."""
    # The driver takes a tuple for a composite value.
    found = {name: list(it) if isinstance(it, tuple) else it for name, it in named.items()}
    for key in keys:
        for field in dataclasses.fields(key):  # type: ignore[arg-type]  # a dataclass
            found.setdefault(field.name, getattr(key, field.name))
    return found
