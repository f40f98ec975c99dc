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
from typing import NamedTuple, TypeVar

from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.direct import Direct
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Connection, before_sending, translated

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


class _BlockedRow(NamedTuple):
    item: int
    reason: str


def find_blocked(
    functions: Functions, statement_timeout: dt.timedelta, concern: Callable[[Item], Concern]
) -> FindBlocked[Item]:
    """Return what finds them, on a connection on which statements may be under way.

    It raises StorageUnavailableError.
    """
    statement = Direct(functions.call("find_blocked", _BlockedRow))
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
        with before_sending():
            arguments = statement.bind(
                row=row or (),
                slot=[each.key.slot for each in concerns],
                namespace=[each.key.namespace for each in concerns],
                process_id=[each.key.process_id for each in concerns],
                w_item=[number for number, _, _ in wanted],
                w_gate=[gate for _, gate, _ in wanted],
                w_order=[order for _, _, order in wanted],
            )
        with translated():
            async with asyncio.timeout(seconds):
                found = await statement.execute(connection, arguments)
        return {row.item - 1: row.reason for row in found}

    return find


def find_locked(
    functions: Functions, statement_timeout: dt.timedelta, *, families: bool = False
) -> FindLocked:
    """Return what finds them, on a connection on which statements may be under way.

    With ``families`` also those whose leader is held: who follows in a job is settled under its
    leader's lock too. It raises StorageUnavailableError, of which StorageLockedError says that the
    whole table is.
    """
    statement = Direct(functions.call("find_locked", int))
    seconds = statement_timeout.total_seconds()

    async def find(connection: Connection, keys: Sequence[ProcessKey]) -> frozenset[ProcessKey]:
        with before_sending():
            arguments = statement.bind(
                with_leaders=families,
                slot=[key.slot for key in keys],
                namespace=[key.namespace for key in keys],
                process_id=[key.process_id for key in keys],
            )
        with translated():
            async with asyncio.timeout(seconds):
                items = await statement.execute(connection, arguments)
        return frozenset(keys[item - 1] for item in items)

    return find
