"""The heartbeat: renews all leases of this replica, from a thread and a connection of its own.

The others take a replica's tasks once ``heartbeat_at`` in its row is older than its lease timeout,
by PostgreSQL's clock. The replica itself goes by the instant before it *sent* the last beat that
was written, by its own monotonic clock: no later than ``heartbeat_at``, however long the beat was
on its way. When that is older than the lease timeout less a margin, the lease is lost: the replica
stops its own steps and takes no more until a beat is written again. The margin, a tenth of the
lease timeout (half a second by default), is for all of this together:

- the event loop is late: lets go as much later;
- the two clocks run at different speeds: 0.05 % at most where time is slewed, 2.5 ms in 5 s;
- the processor's call has to be cancelled, over the network.

Within the margin nobody else has begun when the last of our steps has stopped. That does not hold
where the whole process stood still (SIGSTOP), where the loop was held up for longer than the margin
just as beats were missed, where this machine slept so that its monotonic clock did not count, or
where PostgreSQL's clock was set forward: then a processor may be asked by two replicas at once,
until the late one notices. What that one settles changes nothing in any case: the token of its
lease is no longer the row's. A process that stood still lets go as soon as it runs again: by the
gap between its beats, even if the next beat is written before the loop looks.
"""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from progressor import errors
from progressor.clock import Clock
from progressor.domain.views.replica import ReplicaLoad
from progressor.settings.sections import ReplicaSettings

_log = logging.getLogger(__name__)

MARGIN = 0.1
"""The share of the lease timeout by which a replica lets go before the others may take over."""

_SLEEP_SECONDS_MIN = 0.001
_TOO_LATE = "it took longer than the lease lasts"


class Heartbeats(Protocol):
    """What a heartbeat needs of storage."""

    def beat(self, *, draining: bool, load: ReplicaLoad) -> None:
        """Renew the leases; raises StorageError."""

    def cut(self) -> None:
        """Make a beat in flight fail; from another thread."""

    def close(self) -> None:
        """Close the connection."""


class Heartbeat:
    """One thread that beats until `stop`."""

    def __init__(  # noqa: PLR0913  a composition root's business
        self,
        *,
        heartbeats: Heartbeats,
        replica: ReplicaSettings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        load: Callable[[], ReplicaLoad],
        on_beat: Callable[[], None],
        on_miss: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Start nothing yet.

        Args:
            heartbeats: Writes them; used by the thread alone, but for `cut`.
            replica: Interval and lease timeout.
            clock: For the age of the last beat.
            loop: On which the callbacks are called.
            load: What the replica has in hand; called in the thread.
            on_beat: A beat was written, and the lease stands.
            on_miss: A beat could not be written.
            on_lost: The lease may be others' from now on, or has been for a while; called again
                and again until a beat is written, and by a beat that ends the loss before
                `on_beat`.
        """
        self._heartbeats = heartbeats
        self._interval = replica.heartbeat_interval.total_seconds()
        self._kept = (1 - MARGIN) * replica.lease_timeout.total_seconds()
        self._clock = clock
        self._loop = loop
        self._load = load
        self._on_beat, self._on_miss, self._on_lost = on_beat, on_miss, on_lost
        self._stopped = threading.Event()
        self._draining = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._sent_at: float | None = None
        """When the beat in flight was sent; None: there is none."""
        self._is_lost = False
        self.last_beat_at = clock.monotonic()
        """When the last beat that was written was sent."""

    @property
    def age_seconds(self) -> float:
        """How old the last beat is that was written; from any thread."""
        return self._clock.monotonic() - self.last_beat_at

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def drain(self) -> None:
        """Tell with the next beats that this replica drains."""
        self._draining.set()

    def stop(self) -> None:
        """End the thread; waits for a beat in flight, and cuts one that hangs."""
        self._stopped.set()
        self._thread.join(self._kept)
        if self._thread.is_alive():
            self._heartbeats.cut()
            self._thread.join(self._kept)

    async def watch(self) -> None:
        """Call `on_lost` when the lease is lost; ends only by cancellation.

        On the loop and not in the thread: a beat that hangs must not hide it.
        """
        while True:
            silent = self._clock.monotonic() - self.last_beat_at
            if silent < self._kept:
                await asyncio.sleep(max(self._kept - silent, _SLEEP_SECONDS_MIN))
                continue
            self._lose(silent)
            self._cut_hanging_beat()
            await asyncio.sleep(self._interval / 2)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._beat()
            self._stopped.wait(self._interval)
        self._heartbeats.close()

    def _beat(self) -> None:
        self._sent_at = sent_at = self._clock.monotonic()
        try:
            self._heartbeats.beat(draining=self._draining.is_set(), load=self._load())
        except errors.StorageError as error:
            self._miss(str(error))
            return
        finally:
            self._sent_at = None
        now = self._clock.monotonic()
        if now - sent_at >= self._kept:
            self._miss(_TOO_LATE)
            return
        silent, self.last_beat_at = now - self.last_beat_at, sent_at
        self._call(functools.partial(self._renew, silent))

    def _miss(self, why: str) -> None:
        _log.warning("heartbeat missed", extra={"why": why})
        self._call(self._on_miss)

    def _call(self, callback: Callable[[], None]) -> None:
        # The loop is closed when the engine ends in a hurry.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _renew(self, silent: float) -> None:
        """Go on after a beat; what was leased before a gap that was too long has been lost."""
        if silent >= self._kept:
            self._lose(silent)
        self._is_lost = False
        self._on_beat()

    def _lose(self, silent: float) -> None:
        if not self._is_lost:
            self._is_lost = True
            _log.error("lease lost: no heartbeat could be written", extra={"seconds": silent})
        self._on_lost()

    def _cut_hanging_beat(self) -> None:
        # Nobody else would ever end it where the other side is connected and silent. What is cut
        # would renew nothing any more, so that no slow PostgreSQL is cut off for ever.
        sent_at = self._sent_at
        if sent_at is not None and self._clock.monotonic() - sent_at >= self._kept:
            self._heartbeats.cut()
