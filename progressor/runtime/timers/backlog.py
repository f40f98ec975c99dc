"""The backlog: tasks that were due while no worker was free, taken as places become free."""

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import Callable

from progressor import errors
from progressor.clock import Clock, SystemClock
from progressor.domain.processes.namespace import Namespace
from progressor.runtime.core.observer import Observers
from progressor.runtime.core.scan_measures import ScanMeasures
from progressor.runtime.timers.places import Places
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.backoff import Backoff, steady
from progressor.storage.postgres.pools import Pool
from progressor.storage.processes.claims import Claims
from progressor.telemetry.metrics.registry import Metrics

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.25
_BACKOFF_SECONDS_MAX = 2.0
_NOT_AT_ALL = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Fills free places with what is due, by turns: see runtime/core/slots.py."""

    claims: Claims
    namespaces: Namespaces
    places: Places
    pool: Pool
    batch_max: int
    observers: Observers
    jitter: Callable[[], float] = steady
    clock: Clock = dataclasses.field(default_factory=SystemClock)
    measures: ScanMeasures = dataclasses.field(default_factory=lambda: ScanMeasures(Metrics()))

    async def run(self) -> None:
        """Claim whenever a namespace has both a backlog and room; ends only by cancellation."""
        workers = self.places.workers
        backoff = Backoff(first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self.jitter)
        while True:
            await workers.room_made.wait()
            workers.room_made.clear()
            while backlogs := workers.backlogs():
                try:
                    if not await self._claim(backlogs):
                        break
                    backoff.reset()
                except errors.StorageError as error:
                    _log.warning("backlog not claimed", extra={"why": str(error)})
                    await asyncio.sleep(backoff.pause())

    async def _claim(self, backlogs: dict[str, int]) -> bool:
        """Claim once for all namespaces; False if no place could be had."""
        namespaces: list[Namespace] = []
        for name, mark in backlogs.items():
            try:
                namespaces.append(await self.namespaces.lookup(name))
            except errors.NamespaceNotFoundError:
                self.places.workers.clear_backlog(name, mark)
        rooms = self.places.rooms(namespaces, limit=self.batch_max)
        if not rooms:
            return False
        begun_at = self.clock.monotonic()
        with self.places.kept(rooms):
            claimed = await self.claims.claim_due(self.pool, rooms, overdue=_NOT_AT_ALL, wait=True)
        found = {each.task.key.namespace for each in claimed}
        for room in rooms:
            # Whatever was marked after `backlogs` was read keeps the backlog open.
            if room.namespace not in found:
                self.places.workers.clear_backlog(room.namespace, backlogs[room.namespace])
        self.measures.claimed(claimed, self.clock.monotonic() - begun_at)
        self.places.fill(rooms, claimed)
        self.observers.tell("backlog_claimed", count=len(claimed))
        return True
