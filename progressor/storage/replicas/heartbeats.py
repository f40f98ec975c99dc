"""The heartbeat's own connection: blocking, for its own thread, outside the pools.

Each beat also measures the offset of the replica's clock from PostgreSQL's: PostgreSQL's time of
the beat is assumed to be the middle of the round trip, so the offset is accurate to half a round
trip. The next beat reports it. Replicas never compare times of their own clocks, so an offset
causes a warning and nothing else.

A beat is a write, and another one always follows, so an otherwise idle replica notices here that
its server has become read-only, or that the database has another lineage (``lineage``).
"""

import contextlib
import dataclasses
import datetime as dt
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg

from progressor import errors
from progressor.clock import Clock
from progressor.domain.views.replica import ReplicaLoad
from progressor.settings.sections import ReplicaSettings
from progressor.storage.postgres import statements
from progressor.storage.postgres.pools import COMMITTING, translated
from progressor.storage.replicas import status as watch
from progressor.storage.replicas.lineage import Lineage

_log = logging.getLogger(__name__)
_SQL = statements.load("replicas/replicas")

TRIP_SECONDS_MAX = 1.0
"""A beat that took longer measures nothing: half of it would be as much as what it looks for."""

OFFSET_SECONDS_MAX = 1.0
OFFSET_LOG_SECONDS = 600.0
"""An offset beyond the former is logged, once in so many seconds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    replica_id: int
    name: str
    version: str
    functions: str


class Heard(NamedTuple):
    """What a beat has read: what every replica must know within a heartbeat."""

    paused: Sequence[str]
    access_revision: int
    rates: Sequence[Mapping[str, Any] | None] = ()
    """What each of the other live replicas tells of its rates; None: nothing."""


class Heartbeats:
    def __init__(
        self,
        *,
        dsn: str,
        identity: Identity,
        lineage: Lineage,
        replica: ReplicaSettings,
        clock: Clock,
    ) -> None:
        self._dsn, self._lineage = dsn, lineage
        self._constants = dataclasses.asdict(identity) | {"lease_timeout": replica.lease_timeout}
        self._interval = replica.heartbeat_interval
        self._lease_timeout = replica.lease_timeout
        self._clock = clock
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        # Of the connection, or else of the last one: its commit may wait for a standby.
        self._pid = 0
        self._offset: float | None = None
        self._offset_logged_at = float("-inf")
        # The connection's socket under a number of ours: libpq's own could have been closed, and
        # given to another one, by the time that `cut` uses it.
        self._socket: socket.socket | None = None
        self._socket_lock = threading.Lock()

    def beat(self, *, draining: bool, load: ReplicaLoad) -> Heard:
        """Renew all leases of the replica, or enter it; return what it has heard. Blocks.

        Raises:
            StorageReadOnlyError: The server has become read-only.
            StorageLineageError: The database has another lineage.
            StorageError: It could not be written; the next beat connects anew.
        """
        parameters = self._constants | {
            "draining": draining,
            "now": self._clock.pinned(),
            "step_count": load.step_count,
            "caller_count": load.caller_count,
            "clock_offset": self._offset,
            "facts": watch.encode_loads(load.loads),
            "rates": msgspec.json.encode(load.rates).decode() if load.rates else None,
        }
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            with translated():
                if self._connection is None:
                    self._connection = self._connect()
                    self._refuse_second_waiting(self._connection)
                position = self._lineage.check_blocking(self._connection)
                parameters["epoch"] = self._lineage.epoch
                sent_at, started = self._clock.now(), self._clock.monotonic()
                row = self._connection.execute(_SQL["beat"], parameters).fetchone()
            if row is None:
                # The next beat finds out which one.
                raise errors.StorageUnavailableError("the database has another lineage")
            undo.pop_all()
        # The commit of the beat comes after this position.
        self._lineage.remember(position)
        self._measure(row[0], sent_at=sent_at, trip=self._clock.monotonic() - started)
        return Heard(row[1] or (), row[2], row[3] or ())

    def cut(self) -> None:
        """Break the connection under a beat in flight, which then fails. From any thread."""
        with self._socket_lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._socket_lock:
            wire, self._socket = self._socket, None
            if wire is not None:
                wire.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # A beat that hangs is a beat missed: neither connecting nor an answer may outlast a lease.
        half: dt.timedelta = self._lease_timeout / 2
        connection = psycopg.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=max(2, round(self._interval.total_seconds())),
            tcp_user_timeout=max(1, round(half.total_seconds() * 1000)),
            prepare_threshold=None,
        )
        # Where no number is left, it is a connection that nothing cuts.
        with self._socket_lock, contextlib.suppress(OSError):
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        return connection

    def _refuse_second_waiting(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Let no beat wait behind one that was given up, which keeps the replica's row locked.

        While a synchronous standby is down, PostgreSQL keeps the session of each.
        """
        waiting = connection.execute(COMMITTING, [[self._pid]]).fetchone()
        if waiting is not None:
            raise errors.StorageUnavailableError("an abandoned heartbeat still waits for a standby")
        self._pid = connection.info.backend_pid

    def _measure(self, beaten_at: dt.datetime, *, sent_at: dt.datetime, trip: float) -> None:
        if trip > TRIP_SECONDS_MAX:
            return
        middle = sent_at + dt.timedelta(seconds=trip / 2)
        self._offset = (middle - beaten_at).total_seconds()
        now = self._clock.monotonic()
        if (
            abs(self._offset) > OFFSET_SECONDS_MAX
            and now - self._offset_logged_at >= OFFSET_LOG_SECONDS
        ):
            self._offset_logged_at = now
            _log.warning(
                "this replica's clock differs from PostgreSQL's",
                extra={
                    "ahead_seconds": round(self._offset, 3),
                    "affected": "deadlines sent to processors, elapsed_max of retries, log, spans",
                    "unaffected": "leases, timers, order: PostgreSQL's clock alone",
                },
            )
