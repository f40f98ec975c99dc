"""Timers and retries of this replica: claimed the moment they are due."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Sequence

from progressor import errors
from progressor.runtime.core.context import Context
from progressor.runtime.core.scan_measures import ScanMeasures
from progressor.runtime.effects.due_queue import DueQueue
from progressor.runtime.timers.reservations import SlotReservations
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.postgres.pools import Pool
from progressor.storage.processes.claims import Claims, Wanted
from progressor.storage.processes.settlements import Due

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.25
_BACKOFF_SECONDS_MAX = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Works through the due_queue."""

    due_queue: DueQueue
    claims: Claims
    namespaces: Namespaces
    reservations: SlotReservations
    pool: Pool
    batch_max: int
    context: Context

    async def run(self) -> None:
        """Claim what is due, when it is due; ends only by cancellation."""
        backoff = Backoff(
            first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self.context.jitter
        )
        while True:
            due = self.due_queue.take_due(self.batch_max)
            if not due:
                await self._next()
                continue
            try:
                await self._claim(due)
                backoff.reset()
            except errors.StorageUnavailableError as error:
                _log.warning("timers not claimed", extra={"why": error.why, "count": len(due)})
                await asyncio.sleep(backoff.pause())
                for each in due:
                    self.due_queue.add(each, as_of=each.due_at)
            except errors.StorageRefusedError as error:
                # What PostgreSQL has of one of them is broken: the scan tries the others again.
                _log.error("timers not claimed", extra={"why": str(error), "count": len(due)})
                await asyncio.sleep(backoff.pause())

    async def _next(self) -> None:
        self.due_queue.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.due_queue.wait_seconds()):
                await self.due_queue.changed.wait()

    async def _claim(self, due: Sequence[Due]) -> None:
        wanted: list[Wanted] = []
        reserved: dict[str, int] = {}
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_back, reserved)
            for each in due:
                await self._reserve(each, wanted, reserved)
            if not wanted:
                # All stand in line elsewhere. A crowd of them must not hold up the event loop.
                await asyncio.sleep(0)
                return
            begun_at = self.context.clock.monotonic()
            claimed = await self.claims.claim_tasks(self.pool, wanted)
            ScanMeasures(self.context.metrics).claimed(
                claimed, self.context.clock.monotonic() - begun_at
            )
            for each_claimed in claimed:
                reserved[each_claimed.task.key.namespace] -= 1
                self.reservations.slots.start(each_claimed.task)
        if claimed:
            self.context.observers.tell("timers_claimed", count=len(claimed))

    def _give_back(self, reserved: dict[str, int]) -> None:
        for name, count in reserved.items():
            if count:
                self.reservations.slots.give_back(name, count)

    async def _reserve(self, due: Due, wanted: list[Wanted], reserved: dict[str, int]) -> None:
        name = due.key.namespace
        try:
            namespace = await self.namespaces.lookup(name)
        except errors.NamespaceNotFoundError:
            return
        # Those with a backlog stand in line there: the oldest go first.
        backlog = self.reservations.slots.has_backlog(name)
        if backlog or not self.reservations.slots.reserve_up_to(namespace, 1):
            self.reservations.slots.mark_backlog(name)
            return
        reserved[name] = reserved.get(name, 0) + 1
        expires_after = self.context.lease_of(namespace)
        wanted.append(Wanted(key=due.key, task_id=due.task_id, expires_after=expires_after))
