"""Lineage: on which history of the database a replica works, and how it notices another one.

A promoted standby, a restored backup, and a dump that was read back may lack what replicas,
processors and callers have seen committed. The first connection to such a database raises its
sequences (``priv/functions/claims/check_lineage.sql``), so that no lost id or token is given out
again. What this replica remembers of the lost history, such as leases, cached histories and
tasks for which callers wait, may be wrong there. So a replica belongs to one lineage: a connection
that leads to another one is closed before it is used, and the engine continues as a new replica.

The pools check each new connection. Without a pooler that is enough: no server goes back in time
while a connection lasts. Behind a pooler in transaction mode, the next heartbeat notices.
"""

import asyncio
import logging
import threading
from typing import Any, NamedTuple

import psycopg

from progressor import errors
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Connection

_log = logging.getLogger(__name__)


class _Found(NamedTuple):
    identity: str
    epoch: int
    wal_position: int
    is_new: bool


class Lineage:
    """The lineage of one replica: that of its first connection.

    Thread-safe, but for ``lost``, which is set once a connection of the pools has found another.
    """

    def __init__(self, functions: Functions) -> None:
        self._function = functions.call("check_lineage", _Found)
        self._lock = threading.Lock()
        self._identity: str | None = None
        self._position = 0
        self.epoch = 0
        """It grows with each lineage; 0 before the first connection."""
        self.lost = asyncio.Event()

    async def check(self, connection: Connection) -> None:
        """Check a new connection, and close it unless it leads to this lineage.

        Raises:
            StorageLineageError: It leads to another one.
            psycopg.Error: It leads to a standby, or could not be checked.
        """
        try:
            [found] = await self._function.rows(connection, **self._arguments())
            self._compare(found)
        except (psycopg.Error, errors.StorageLineageError) as error:
            if isinstance(error, errors.StorageLineageError):
                self.lost.set()
            await connection.close()
            raise

    def check_blocking(self, connection: psycopg.Connection[tuple[Any, ...]]) -> int:
        """Check a connection; return the position of its WAL, for `remember`. Blocks.

        Raises:
            StorageLineageError: It leads to another lineage.
            psycopg.Error: It leads to a standby, or could not be checked.
        """
        function = self._function
        cursor = connection.execute(
            function.statement, function.bind(**self._arguments()), binary=True
        )
        [found] = map(function.make_row, cursor.fetchall())
        self._compare(found)
        return found.wal_position

    def remember(self, position: int) -> None:
        """Note that what was committed up to this position of the WAL is durable."""
        with self._lock:
            self._position = max(self._position, position)

    def _arguments(self) -> dict[str, object]:
        with self._lock:
            return {"identity": self._identity, "epoch": self.epoch, "position": self._position}

    def _compare(self, found: _Found) -> None:
        if found.is_new:
            _log.warning("the database has a new lineage", extra={"epoch": found.epoch})
        with self._lock:
            if self._identity is None:
                self._identity, self.epoch = found.identity, found.epoch
            if (self._identity, self.epoch) != (found.identity, found.epoch):
                raise errors.StorageLineageError(self.epoch, found.epoch)
