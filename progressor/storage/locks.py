"""Which processes another transaction holds locked, so that nobody else has to wait for it.

A batch locks all its processes before it writes. One of them may be held for long: by a session
idle in a transaction, somebody's manual UPDATE, a replica that was stopped in the middle. So a
function waits LOCK_TIMEOUT at most (its own `lock_timeout`) and fails with 55P03, and nothing was
written; who is told so asks here which processes it was.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Sequence
from typing import LiteralString

from progressor.domain.process import ProcessKey
from progressor.storage.arrays import Int2Column, TextColumn
from progressor.storage.direct import Direct
from progressor.storage.functions import Functions
from progressor.storage.pools import Connection, translated

LOCK_TIMEOUT = dt.timedelta(milliseconds=300)
"""How long the functions that lock a batch wait for all locks together; it is written there too."""

FindLocked = Callable[[Connection, Sequence[ProcessKey]], Awaitable[frozenset[ProcessKey]]]
"""Return those of the processes that another transaction holds locked at this moment."""


def find_locked(
    functions: Functions, statement_timeout: dt.timedelta, *, families: bool = False
) -> FindLocked:
    """Return what finds them, on a connection on which statements may be under way.

    With ``families`` also those whose leader is held: who follows in a job is settled under its
    leader's lock too. It raises StorageUnavailableError, of which StorageLockedError says that the
    whole table is.
    """
    name: LiteralString = "find_locked_families" if families else "find_locked"
    statement = Direct(functions.call(name, arguments=3))
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
