"""The heartbeat's own connection: blocking, for its own thread, outside the pools."""

import contextlib
import dataclasses
import datetime as dt
from typing import Any

import psycopg

from progressor.clock import Clock
from progressor.settings.sections import Replica
from progressor.storage import statements
from progressor.storage.pools import translated

_SQL = statements.load("replicas")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a replica is, for its row."""

    replica_id: int
    name: str
    version: str
    functions: str


class Heartbeats:
    """Writes heartbeats; connects when it has to."""

    def __init__(self, *, dsn: str, identity: Identity, replica: Replica, clock: Clock) -> None:
        """Open nothing."""
        self._dsn = dsn
        self._identity = dataclasses.asdict(identity)
        self._interval = replica.heartbeat_interval
        self._lease_timeout = replica.lease_timeout
        self._clock = clock
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def beat(self, *, draining: bool) -> None:
        """Renew all leases of the replica, or enter it. Blocks.

        Raises:
            StorageError: It could not be written; the next beat connects anew.
        """
        parameters = self._identity | {"draining": draining, "now": self._clock.pinned()}
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            with translated():
                self._connection = self._connection or self._connect()
                self._connection.execute(_SQL["beat"], parameters)
            undo.pop_all()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # A beat that hangs is a beat missed: neither connecting nor an answer may outlast a lease.
        half: dt.timedelta = self._lease_timeout / 2
        return psycopg.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=max(2, round(self._interval.total_seconds())),
            tcp_user_timeout=max(1, round(half.total_seconds() * 1000)),
            application_name="progressor heartbeat",
            prepare_threshold=None,
        )
