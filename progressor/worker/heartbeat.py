"""The heartbeat: renews all leases of this replica, from a thread and a connection of its own.

A replica that cannot write its heartbeat for as long as the lease timeout must take it that others
have its tasks by now: it stops its own steps first. The thread tells the event loop; a loop too busy
to listen cannot settle anything either, and what it settles later is fenced off.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from progressor import errors
from progressor.clock import Clock
from progressor.settings.sections import Replica
from progressor.storage.pools import translated
from progressor.storage.replicas import Identity, beat

_log = logging.getLogger(__name__)


class Heartbeat:
    """One thread that beats until `stop`."""

    def __init__(  # noqa: PLR0913  a composition root's business
        self,
        *,
        dsn: str,
        identity: Identity,
        replica: Replica,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_beat: Callable[[], None],
        on_miss: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Start nothing yet.

        Args:
            dsn: Where PostgreSQL is.
            identity: Whose heartbeat it is.
            replica: Interval and lease timeout.
            clock: For the age of the last beat.
            loop: On which the callbacks are called.
            on_beat: A beat was written.
            on_miss: A beat could not be written.
            on_lost: None could be written for the lease timeout; called once, until a beat is.
        """
        self._dsn = dsn
        self._identity = identity
        self._interval = replica.heartbeat_interval.total_seconds()
        self._lease_timeout = replica.lease_timeout.total_seconds()
        self._clock = clock
        self._loop = loop
        self._on_beat, self._on_miss, self._on_lost = on_beat, on_miss, on_lost
        self._stopped = threading.Event()
        self._draining = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.last_beat_at = clock.monotonic()

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def drain(self) -> None:
        """Tell with the next beats that this replica drains."""
        self._draining.set()

    def stop(self) -> None:
        """End the thread; waits for a beat in flight."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        connection: psycopg.Connection[tuple[Any, ...]] | None = None
        lost = False
        while not self._stopped.is_set():
            began_at = self._clock.monotonic()
            try:
                with translated():
                    connection = connection or self._connect()
                beat(
                    connection, self._identity, draining=self._draining.is_set(),
                    now=self._clock.pinned(),
                )  # fmt: skip
            except errors.StorageError as error:
                _log.warning("heartbeat missed", extra={"why": str(error)})
                connection = _closed(connection)
                self._call(self._on_miss)
            else:
                # From before the beat was sent: the row may be as old as that.
                self.last_beat_at = began_at
                lost = False
                self._call(self._on_beat)
            if not lost and self._clock.monotonic() - self.last_beat_at > self._lease_timeout:
                lost = True
                _log.error("lease lost: no heartbeat could be written")
                self._call(self._on_lost)
            self._stopped.wait(self._interval)
        _closed(connection)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # A beat that hangs is a beat missed: neither connecting nor the statement may outlast a
        # lease.
        connection = psycopg.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=max(2, round(self._interval)),
            tcp_user_timeout=max(1, round(self._lease_timeout * 1000 / 2)),
            application_name="progressor heartbeat",
            prepare_threshold=None,
        )
        return connection

    def _call(self, callback: Callable[[], None]) -> None:
        # The loop is closed when the engine ends in a hurry.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)


def _closed(connection: psycopg.Connection[tuple[Any, ...]] | None) -> None:
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            connection.close()
