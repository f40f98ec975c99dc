"""What every storage class takes from the replica around it."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, LiteralString, TypeVar

import psycopg

from progressor.clock import Clock
from progressor.storage.postgres.functions import Function, Functions
from progressor.storage.postgres.pools import Connection, Pool, connection_of

R = TypeVar("R", bound=tuple[Any, ...])

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
        """Return ``now``, ``replica_id`` and ``starvation_timeout`` for functions that write."""
        return {
            "now": self.clock.pinned(),
            "replica_id": self.replica_id,
            "starvation_timeout": self.starvation_timeout.total_seconds(),
        }

    @contextlib.asynccontextmanager
    async def connection(
        self, *, pool: Pool | None = None, reads_only: bool = False
    ) -> AsyncIterator[Connection]:
        """Lend a connection for statements that finish within the statement timeout.

        It comes from `pool`, if one is given.

        Raises:
            StorageError: As `pools.connection_of`.
        """
        async with (
            connection_of(pool or self.pool, reads_only=reads_only) as connection,
            asyncio.timeout(self.statement_timeout.total_seconds()),
        ):
            yield connection

    async def rows(
        self,
        statement: bytes | LiteralString,
        arguments: Sequence[Any] | Mapping[str, Any],
        *,
        reads_only: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of one statement; raises as `connection`."""
        async with self.connection(reads_only=reads_only) as connection:
            cursor = await connection.execute(statement, arguments, binary=True)
            return await cursor.fetchall()

    async def named_rows(
        self, row: type[R], statement: LiteralString, named: Mapping[str, Any]
    ) -> list[R]:
        """Return the rows of one statement, whose columns are the fields of a NamedTuple.

        Raises:
            StorageError: As `connection`.
        """
        async with self.connection() as connection:
            cursor = connection.cursor(binary=True)
            await cursor.execute(statement, named)
            return await fetch_named(cursor, row)

    async def call(self, function: Function[R], **named: object) -> list[R]:
        """Call a function and return its rows; raises as `connection` and `Function.rows`."""
        async with self.connection() as connection:
            return await function.rows(connection, **named)


async def fetch_named(cursor: psycopg.AsyncCursor[Any], row: type[R]) -> list[R]:
    """Return the rows of a statement, whose columns are the fields of a NamedTuple."""
    columns = tuple(column.name for column in cursor.description or ())
    fields = getattr(row, "_fields", ())
    assert columns == fields, f"the statement returns {columns}, not {fields}"
    return [row(*values) for values in await cursor.fetchall()]
