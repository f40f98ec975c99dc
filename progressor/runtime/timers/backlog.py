"""The backlog: tasks that were due while no worker was free, taken as places become free."""

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import Collection, Mapping, Sequence

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.runtime.core.context import Context
from progressor.runtime.core.scan_measures import ScanMeasures
from progressor.runtime.timers.reservations import SlotReservations
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.postgres.pools import Pool
from progressor.storage.processes.claims import Claims, Room

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.25
_BACKOFF_SECONDS_MAX = 2.0
_MISS_SECONDS = 0.005
_MISSES_MAX = 8
"""Claims in a row that may find nothing although something is due; the rest is the scan's."""

_NOT_AT_ALL = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Fills free places with what is due, by turns: see runtime/core/slots.py."""

    claims: Claims
    namespaces: Namespaces
    reservations: SlotReservations
    pool: Pool
    batch_max: int
    context: Context

    async def run(self) -> None:
        """Claim whenever a namespace has both a backlog and room; ends only by cancellation."""
        slots = self.reservations.slots
        backoff = Backoff(
            first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self.context.jitter
        )
        while True:
            await slots.room_made.wait()
            slots.room_made.clear()
            misses = Backoff(
                first=_MISS_SECONDS, longest=_BACKOFF_SECONDS, jitter=self.context.jitter
            )
            left = _MISSES_MAX
            while backlogs := slots.backlogs():
                try:
                    rooms = await self._reserve(backlogs)
                    if not rooms:
                        break
                    found = await self._claim(rooms)
                    left = _MISSES_MAX if found else left - 1
                    empty = {room.namespace for room in rooms} - found
                    if await self._clear(backlogs, empty, sure=left == 0) and not found:
                        await asyncio.sleep(misses.pause())
                    backoff.reset()
                except errors.StorageError as error:
                    _log.warning("backlog not claimed", extra={"why": str(error)})
                    await asyncio.sleep(backoff.pause())

    async def _reserve(self, backlogs: Mapping[str, int]) -> list[Room]:
        """Reserve free places in the namespaces with a backlog."""
        namespaces: list[Namespace] = []
        for name, mark in backlogs.items():
            try:
                namespaces.append(await self.namespaces.lookup(name))
            except errors.NamespaceNotFoundError:
                self.reservations.slots.clear_backlog(name, mark)
        return self.reservations.rooms(namespaces, limit=self.batch_max)

    async def _claim(self, rooms: Sequence[Room]) -> set[str]:
        """Claim once for all rooms; return the namespaces of what was claimed."""
        begun_at = self.context.clock.monotonic()
        with self.reservations.kept(rooms):
            claimed = await self.claims.claim_due(self.pool, rooms, overdue=_NOT_AT_ALL, wait=True)
        ScanMeasures(self.context.metrics).claimed(
            claimed, self.context.clock.monotonic() - begun_at
        )
        self.reservations.fill(rooms, claimed)
        self.context.observers.tell("backlog_claimed", count=len(claimed))
        return {each.task.key.namespace for each in claimed}

    async def _clear(self, backlogs: Mapping[str, int], empty: set[str], *, sure: bool) -> bool:
        """Clear the backlogs in which nothing is due; return whether one stays.

        A claim also comes back empty if another replica took what it had chosen, while other tasks
        are due that only this replica knows of. If `sure`, the backlogs are cleared all the same:
        their tasks are locked, and left to the scan.
        """
        if not empty:
            return False
        due: Collection[str] = ()
        if not sure:
            due = await self.claims.find_overdue(self.pool, sorted(empty), overdue=_NOT_AT_ALL)
        for name in empty.difference(due):
            # Whatever was marked after `backlogs` was read keeps the backlog open.
            self.reservations.slots.clear_backlog(name, backlogs[name])
        return bool(due)
