"""Which processes another transaction holds locked, so that only their writes wait for it.

A batch locks all its processes before it writes. One of them may be held for long: by a session
idle in a transaction, a manual UPDATE, a replica that was stopped in the middle. So a
function waits LOCK_TIMEOUT at most (its own `lock_timeout`) and fails with 55P03, and nothing was
written; a writer that gets this error asks here which processes it was. Where it was none, the row
belongs to a process, or is a gate, say; what has to do with it is found by the row that PostgreSQL
names.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import LiteralString, TypeVar

from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.arrays import Int2Column, Int4Column, TextColumn
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Connection, translated

Item = TypeVar("Item")

LOCK_TIMEOUT = dt.timedelta(milliseconds=300)
"""How long the functions that lock a batch wait for all locks together; it is written there too."""

FindLocked = Callable[[Connection, Sequence[ProcessKey]], Awaitable[frozenset[ProcessKey]]]
"""Return those of the processes that another transaction holds locked at this moment."""


Reason = Hashable
"""What an item waits for; items with the same reason are released together."""

FindBlocked = Callable[
    [Connection, Sequence[Item], tuple[str, str] | None], Awaitable[Mapping[int, Reason]]
]
"""Return those of the items of a batch, by their places, that have to do with a locked row.

It is asked where no process is locked. The row is that of the StorageLockedError, if it has one.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Concern:
    """What an item of a batch may have to wait for: its process, and gates that it wants."""

    key: ProcessKey
    gates: Collection[str] = ()
    order: str | None = None


def find_blocked(
    functions: Functions, statement_timeout: dt.timedelta, concern: Callable[[Item], Concern]
) -> FindBlocked[Item]:
    """Return what finds them, on a connection on which statements may be under way.

    It raises StorageUnavailableError.
    """
    statement = Direct(functions.call("find_blocked"))
    seconds = statement_timeout.total_seconds()

    async def find(
        connection: Connection, items: Sequence[Item], row: tuple[str, str] | None
    ) -> Mapping[int, Reason]:
        concerns = [concern(item) for item in items]
        wanted: list[tuple[int, str | None, str | None]] = []
        for number, each in enumerate(concerns, start=1):
            wanted += [(number, gate, None) for gate in each.gates]
            if each.order is not None:
                wanted.append((number, None, each.order))
        with translated():
            async with asyncio.timeout(seconds):
                found = await statement.execute(
                    connection,
                    [
                        TextColumn(row or ()),
                        Int2Column([each.key.slot for each in concerns]),
                        TextColumn([each.key.namespace for each in concerns]),
                        TextColumn([each.key.process_id for each in concerns]),
                        Int4Column([number for number, _, _ in wanted]),
                        TextColumn([gate for _, gate, _ in wanted]),
                        TextColumn([order for _, _, order in wanted]),
                    ],
                )
        return {place - 1: reason for place, reason in found}

    return find


def find_locked(
    functions: Functions, statement_timeout: dt.timedelta, *, families: bool = False
) -> FindLocked:
    """Return what finds them, on a connection on which statements may be under way.

    With ``families`` also those whose leader is held: who follows in a job is settled under its
    leader's lock too. It raises StorageUnavailableError, of which StorageLockedError says that the
    whole table is.
    """
    name: LiteralString = "find_locked_with_leaders" if families else "find_locked"
    statement = Direct(functions.call(name))
    seconds = statement_timeout.total_seconds()

    async def find(connection: Connection, keys: Sequence[ProcessKey]) -> frozenset[ProcessKey]:
        with translated():
            async with asyncio.timeout(seconds):
                found = await statement.execute(
                    connection,
                    [
                        Int2Column([key.slot for key in keys]),
                        TextColumn([key.namespace for key in keys]),
                        TextColumn([key.process_id for key in keys]),
                    ],
                )
        return frozenset(keys[row[0] - 1] for row in found)

    return find
