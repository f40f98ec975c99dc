"""The heartbeat: renews all leases of this replica, from a thread and a connection of its own.

The others take a replica's tasks once ``heartbeat_at`` in its row is older than its lease timeout,
by PostgreSQL's clock. The replica itself counts from just before it *sent* the last beat that was
written, by its own monotonic clock: that cannot be later. When this is older than the lease timeout
less a margin, the lease is lost: the replica stops its own steps and takes no more until a beat is
written again. The margin, a tenth of the lease timeout, covers a late event loop, clocks that run
at different speeds (2.5 ms in 5 s), and the cancellation of the processor's call.

Within the margin, the last of our steps has stopped before another replica begins, unless the whole
process was stopped or blocked, the machine was suspended, or PostgreSQL's clock was set forward.
Then two replicas may ask a processor at once, until the late one notices. What the late one settles
changes nothing in any case: the token of its lease is no longer the row's. A process that was
stopped lets go as soon as it runs again, by the gap between its beats.
"""

import asyncio
import contextlib
import enum
import functools
import logging
import threading
from collections.abc import Callable

from progressor import errors
from progressor.domain.views.replica import ReplicaLoad
from progressor.runtime.core.context import Context
from progressor.storage.replicas.heartbeats import Heard, Heartbeats

_log = logging.getLogger(__name__)

MARGIN = 0.1
"""The share of the lease timeout by which a replica lets go before the others may take over."""

_SLEEP_SECONDS_MIN = 0.001
_TOO_LATE = "it took longer than the lease lasts"


class Report(enum.Enum):
    WRITTEN = enum.auto()
    """A beat was written, and the lease is valid."""
    MISSED = enum.auto()
    """A beat could not be written."""
    READ_ONLY = enum.auto()
    """A beat could not be written because the server has become read-only."""
    OTHER_LINEAGE = enum.auto()
    """A beat could not be written because the database has another lineage."""
    LOST = enum.auto()
    """Other replicas may take the leases from now on, or could for a while.

    Reported repeatedly until a beat is written, and by that beat before WRITTEN.
    """


class Heartbeat:
    """One thread that beats until `stop`.

    It calls ``load`` in the thread, for what the replica is working on; and on the loop ``report``,
    after ``hear`` with what a beat has read.
    """

    def __init__(
        self,
        *,
        heartbeats: Heartbeats,
        context: Context,
        loop: asyncio.AbstractEventLoop,
        load: Callable[[], ReplicaLoad],
        report: Callable[[Report], None],
        hear: Callable[[Heard], None],
    ) -> None:
        self._heartbeats = heartbeats
        self._interval = context.replica.heartbeat_interval.total_seconds()
        self._kept = (1 - MARGIN) * context.replica.lease_timeout.total_seconds()
        self._clock = context.clock
        self._loop = loop
        self._load = load
        self._report = report
        self._hear = hear
        self._stopped = threading.Event()
        self._draining = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._sent_at: float | None = None
        """When the beat in flight was sent; None: there is none."""
        self._is_lost = False
        self.last_beat_at = self._clock.monotonic()
        """When the last beat that was written was sent."""

    @property
    def age_seconds(self) -> float:
        """The age of the last beat that was written; from any thread."""
        return self._clock.monotonic() - self.last_beat_at

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        self._draining.set()

    def stop(self) -> None:
        """End the thread; waits for a beat in flight, and cuts one that hangs."""
        self._stopped.set()
        self._thread.join(self._kept)
        if self._thread.is_alive():
            self._heartbeats.cut()
            self._thread.join(self._kept)

    async def watch(self) -> None:
        """Report when the lease is lost; ends only by cancellation.

        It runs on the loop and not in the thread, where a beat that hangs would hide the loss.
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
            heard = self._heartbeats.beat(draining=self._draining.is_set(), load=self._load())
        except errors.StorageError as error:
            if isinstance(error, errors.StorageReadOnlyError):
                self._call(functools.partial(self._report, Report.READ_ONLY))
            elif isinstance(error, errors.StorageLineageError):
                self._call(functools.partial(self._report, Report.OTHER_LINEAGE))
            self._miss(str(error))
            return
        finally:
            self._sent_at = None
        now = self._clock.monotonic()
        if now - sent_at >= self._kept:
            self._miss(_TOO_LATE)
            return
        silent, self.last_beat_at = now - self.last_beat_at, sent_at
        self._call(functools.partial(self._renew, silent, heard))

    def _miss(self, why: str) -> None:
        _log.warning("heartbeat missed", extra={"why": why})
        self._call(functools.partial(self._report, Report.MISSED))

    def _call(self, callback: Callable[[], None]) -> None:
        # The loop is closed when the engine ends in a hurry.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _renew(self, silent: float, heard: Heard) -> None:
        """Continue after a beat; if the gap before it was too long, earlier leases are lost."""
        self._hear(heard)
        if silent >= self._kept:
            self._lose(silent)
        self._is_lost = False
        self._report(Report.WRITTEN)

    def _lose(self, silent: float) -> None:
        if not self._is_lost:
            self._is_lost = True
            _log.error("lease lost: no heartbeat could be written", extra={"seconds": silent})
        self._report(Report.LOST)

    def _cut_hanging_beat(self) -> None:
        # Nothing else would end it while the other side is connected and silent. Such a beat can
        # renew nothing any more, so a slow PostgreSQL is not cut off forever.
        sent_at = self._sent_at
        if sent_at is not None and self._clock.monotonic() - sent_at >= self._kept:
            self._heartbeats.cut()
