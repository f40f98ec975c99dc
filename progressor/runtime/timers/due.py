"""The safety net: finds due tasks that no replica has claimed at their time, and those due soon.

What only this scan finds is counted as ``scan_found``; in a healthy engine it stays at zero. Its
other duty is to fill the due queue with timers that were too far ahead to be remembered, or whose
replica is gone.
"""

import asyncio
import collections
import dataclasses
import datetime as dt
import logging
from collections.abc import Sequence

from progressor import errors
from progressor.runtime.core.context import Context
from progressor.runtime.core.scan_measures import ScanMeasures
from progressor.runtime.effects.due_queue import DueQueue
from progressor.runtime.timers.reservations import SlotReservations
from progressor.settings.sections import Scanner
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.pools import Pool
from progressor.storage.processes.claims import Claimed, Claims, Room
from progressor.storage.processes.settlements import Due

_log = logging.getLogger(__name__)

PAGES_MAX = 100
"""Pages of one look ahead; what lies behind them comes with the next scans, as these are due."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueScan:
    """One scan over the schedule, by its due-time index."""

    claims: Claims
    namespaces: Namespaces
    reservations: SlotReservations
    due_queue: DueQueue
    pool: Pool
    scanner: Scanner
    lease_timeout: dt.timedelta
    context: Context

    called: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when another replica leaves due tasks to this one."""

    async def run_called(self) -> None:
        """Take over due tasks whenever another replica calls; ends only by cancellation."""
        while True:
            await self.called.wait()
            self.called.clear()
            try:
                await self._claim_overdue(dt.timedelta())
            except errors.StorageError as error:
                # The scan finds them a little later.
                _log.warning("due tasks not taken over", extra={"why": str(error)})

    async def scan(self) -> None:
        """Read the namespaces, look ahead, and claim what is overdue."""
        await self.namespaces.refresh()
        if self.reservations.slots.draining:
            return
        await self._look_ahead()
        for each in await self._claim_overdue(self.scanner.overdue):
            ScanMeasures(self.context.metrics).missed(each)
            self.context.observers.tell(
                "scan_found",
                task_id=each.task.task_id,
                task_type=each.task.task_type,
                set_by=each.set_by,
            )

    async def _look_ahead(self) -> None:
        """Read all that is due within the horizon, a page of each namespace at a time."""
        rooms = [
            Room(
                namespace=namespace.name,
                limit=self.scanner.batch_max,
                expires_after=namespace.step_timeout,
            )
            for namespace in self.namespaces.known()
        ]
        for _ in range(PAGES_MAX):
            upcoming, told_at = await self.claims.find_upcoming(
                self.pool,
                rooms,
                horizon=self.scanner.horizon,
                lease_timeout=self.lease_timeout,
            )
            for due in upcoming:
                assert told_at is not None, "PostgreSQL tells its instant with the tasks"
                self.due_queue.add(due, as_of=told_at)
            rooms = _following(rooms, upcoming)
            if not rooms:
                return

    async def _claim_overdue(self, since: dt.timedelta) -> Sequence[Claimed]:
        known = self.namespaces.known()
        begun_at = self.context.clock.monotonic()
        overdue = await self.claims.find_overdue(
            self.pool,
            [namespace.name for namespace in known],
            overdue=since,
        )
        late = [namespace for namespace in known if namespace.name in overdue]
        rooms = self.reservations.rooms(late, limit=self.scanner.batch_max)
        claimed: Sequence[Claimed] = ()
        if rooms:
            with self.reservations.kept(rooms):
                claimed = await self.claims.claim_due(self.pool, rooms, overdue=since, wait=False)
            self.reservations.fill(rooms, claimed)
        seconds = self.context.clock.monotonic() - begun_at
        ScanMeasures(self.context.metrics).claimed(claimed, seconds)
        ScanMeasures(self.context.metrics).found_nothing(
            (each.name for each in known if each.name not in overdue), seconds
        )
        room = {each.namespace: each.limit for each in rooms}
        taken = collections.Counter(each.task.key.namespace for each in claimed)
        for namespace in late:
            # What found no place may not be overtaken by requests that have just come.
            if taken[namespace.name] == room.get(namespace.name, 0):
                self.reservations.slots.mark_backlog(namespace.name)
        return claimed


def _following(rooms: Sequence[Room], upcoming: Sequence[Due]) -> list[Room]:
    """Return where to read on: behind the last task of each namespace whose page was full."""
    pages: dict[str, list[Due]] = {}
    for due in upcoming:
        pages.setdefault(due.key.namespace, []).append(due)
    following = []
    for room in rooms:
        page = pages.get(room.namespace, [])
        if len(page) == room.limit:
            last = page[-1]
            following.append(dataclasses.replace(room, after=(last.due_at, last.task_id)))
    return following
