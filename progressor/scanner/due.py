"""The safety net: finds due tasks that no replica has claimed at their time, and those due soon.

What only this scan finds is counted as ``scan_found``; in a healthy engine it stays at zero. Its
other duty is to fill the agenda with timers that were too far ahead to be remembered, or whose
replica is gone.
"""

import dataclasses

from progressor import errors
from progressor.scanner.places import Places
from progressor.settings.sections import Replica, Scanner
from progressor.storage.claims import Claims, Room
from progressor.storage.namespaces import Namespaces
from progressor.storage.pools import Pool
from progressor.worker.agenda import Agenda
from progressor.worker.observer import Observers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueScan:
    """One scan over the schedule, by its due-time index."""

    claims: Claims
    namespaces: Namespaces
    places: Places
    agenda: Agenda
    pool: Pool
    scanner: Scanner
    replica: Replica
    observers: Observers

    async def scan(self) -> None:
        """Read the namespaces, look ahead, and claim what is overdue."""
        await self.namespaces.refresh()
        if self.places.workers.draining:
            return
        await self._look_ahead()
        await self._claim_overdue()

    async def _look_ahead(self) -> None:
        rooms = [
            Room(
                namespace=namespace.name,
                limit=self.scanner.batch_max,
                expires_after=namespace.step_timeout,
            )
            for namespace in self.namespaces.known()
        ]
        upcoming, told_at = await self.claims.find_upcoming(
            self.pool,
            rooms,
            horizon=self.scanner.horizon,
            lease_timeout=self.replica.lease_timeout,
        )
        for due in upcoming:
            assert told_at is not None, "PostgreSQL tells its instant with the tasks"
            self.agenda.add(due, told_at=told_at)

    async def _claim_overdue(self) -> None:
        known = self.namespaces.known()
        overdue = await self.claims.find_overdue(
            self.pool,
            [namespace.name for namespace in known],
            overdue=self.scanner.overdue,
        )
        late = [namespace for namespace in known if namespace.name in overdue]
        rooms = self.places.rooms(late, limit=self.scanner.batch_max)
        if not rooms:
            return
        try:
            claimed = await self.claims.claim_due(
                self.pool, rooms, overdue=self.scanner.overdue, wait=False
            )
        except errors.StorageError:
            self.places.give_back(rooms)
            raise
        self.places.fill(rooms, claimed)
        for each in claimed:
            self.observers.tell(
                "scan_found",
                task_id=each.task.task_id,
                task_type=each.task.task_type,
                set_by=each.set_by,
            )
