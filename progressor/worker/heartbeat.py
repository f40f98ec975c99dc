"""The heartbeat: renews all leases of this replica, from a thread and a connection of its own.

A replica that cannot write its heartbeat for as long as the lease timeout must take it that
others have its tasks by now: it stops its own steps first. That is watched by the event loop; a
loop too busy to watch cannot settle anything either, and what it settles later is fenced off.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from progressor import errors
from progressor.clock import Clock
from progressor.settings.sections import Replica

_log = logging.getLogger(__name__)


class Heartbeats(Protocol):
    """What a heartbeat needs of storage."""

    def beat(self, *, draining: bool) -> None:
        """Renew the leases; raises StorageError."""

    def close(self) -> None:
        """Close the connection."""


class Heartbeat:
    """One thread that beats until `stop`."""

    def __init__(  # noqa: PLR0913  a composition root's business
        self,
        *,
        heartbeats: Heartbeats,
        replica: Replica,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_beat: Callable[[], None],
        on_miss: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Start nothing yet.

        Args:
            heartbeats: Writes them; used by the thread alone.
            replica: Interval and lease timeout.
            clock: For the age of the last beat.
            loop: On which the callbacks are called.
            on_beat: A beat was written.
            on_miss: A beat could not be written.
            on_lost: None could be written for the lease timeout; called again and again until one
                is, for what was leased meanwhile.
        """
        self._heartbeats = heartbeats
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

    async def watch(self) -> None:
        """Call `on_lost` when the lease is lost; ends only by cancellation.

        On the loop and not in the thread: a beat that hangs must not hide it.
        """
        lost = False
        while True:
            await asyncio.sleep(self._interval / 2)
            silent = self._clock.monotonic() - self.last_beat_at
            if silent <= self._lease_timeout:
                lost = False
                continue
            if not lost:
                lost = True
                _log.error("lease lost: no heartbeat could be written", extra={"seconds": silent})
            self._on_lost()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began_at = self._clock.monotonic()
            try:
                self._heartbeats.beat(draining=self._draining.is_set())
            except errors.StorageError as error:
                _log.warning("heartbeat missed", extra={"why": str(error)})
                self._call(self._on_miss)
            else:
                # From before the beat was sent: the row may be as old as that.
                self.last_beat_at = began_at
                self._call(self._on_beat)
            self._stopped.wait(self._interval)
        self._heartbeats.close()

    def _call(self, callback: Callable[[], None]) -> None:
        # The loop is closed when the engine ends in a hurry.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)
