"""Claims tasks when they are due, in three ways.

- `Timers` claims what this replica knows will be due, the moment it is due.
- `Backlog` claims what was due while every slot was busy, as slots become free.
- `DueScan` is the safety net: it finds due tasks that no replica has claimed, and fills the due
  queue with timers that were too far ahead to be remembered or whose replica is gone. What only it
  finds is counted as ``scan_found``; in a healthy engine that stays at zero.
"""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import TIMER_TYPES
from progressor.runtime.core.context import Context
from progressor.runtime.core.rates import Rates
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.pools import Pool
from progressor.storage.steps.claims import Claimed, Claims, Room, Wanted
from progressor.storage.steps.settlements import Due

_log = logging.getLogger(__name__)
_BACKOFF_SECONDS = 0.25, 2.0
_MISS_SECONDS = 0.005, 0.25
_MISSES_MAX = 8
"""Claims in a row that may find nothing although something is due; the rest is the scan's."""

PAGES_MAX = 100
"""Pages of one look ahead; later scans read the rest as it becomes due."""

_NOT_AT_ALL = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claimer:
    claims: Claims
    namespaces: Namespaces
    slots: Slots
    rates: Rates
    context: Context

    def rooms(self, namespaces: Iterable[Namespace]) -> list[Room]:
        """Reserve up to a batch of slots in each namespace; those without any are left out."""
        rooms = []
        for namespace in namespaces:
            count = self.slots.reserve_up_to(namespace, self.context.scanner.batch_max)
            if count:
                timers = self.rates.take_timers(namespace, count, oldest=True)
                if 0 < timers < count:
                    self.slots.give_back(namespace.name, count - timers)
                    count = timers
                rooms.append(
                    Room(
                        namespace=namespace.name,
                        limit=count,
                        requests_only=not timers,
                        expires_after=self.context.lease_of(namespace),
                        requests_first=self.slots.next_turn(namespace.name),
                    )
                )
        return rooms

    async def claim(
        self, pool: Pool, rooms: Sequence[Room], *, overdue: dt.timedelta, wait: bool
    ) -> Sequence[Claimed]:
        """Claim and start what is due for the reserved slots, and give back those that are left.

        If the claim fails or is cancelled, all slots are returned.
        """
        left = {room.namespace: room.limit for room in rooms}
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_back, left)
            claimed = await self.claims.claim_due(pool, rooms, overdue=overdue, wait=wait)
            self.start(claimed, left)
        for room in rooms:
            self._settle_timers(room, claimed)
        return claimed

    def _settle_timers(self, room: Room, claimed: Iterable[Claimed]) -> None:
        """Give back what a claim took of the quota of timers, and see whether more of them wait."""
        namespace = self.namespaces.find(room.namespace)
        if namespace is None or not namespace.quotas.timers_per_second or room.requests_only:
            return
        tasks = [it.task for it in claimed if it.task.key.namespace == room.namespace]
        self.rates.give_back_timers(
            room.namespace, room.limit - sum(it.task_type in TIMER_TYPES for it in tasks)
        )
        if len(tasks) < room.limit:
            self.rates.release_timers(room.namespace)
        else:
            self.rates.hold_timers(namespace)

    async def claim_tasks(self, pool: Pool, due: Iterable[Due]) -> tuple[Sequence[Claimed], int]:
        wanted: list[Wanted] = []
        left: dict[str, int] = collections.Counter()
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_back, left)
            for each in due:
                namespace = await self._reserve(each)
                if namespace is not None:
                    left[namespace.name] += 1
                    expires_after = self.context.lease_of(namespace)
                    wanted.append(
                        Wanted(key=each.key, task_id=each.task_id, expires_after=expires_after)
                    )
            claimed = await self.claims.claim_tasks(pool, wanted) if wanted else ()
            self.start(claimed, left)
        free = collections.Counter(it.key.namespace for it in wanted)
        free.subtract(it.task.key.namespace for it in claimed if it.task.task_type in TIMER_TYPES)
        for name, count in free.items():
            self.rates.give_back_timers(name, count)
        return claimed, len(wanted)

    def start(self, claimed: Iterable[Claimed], left: dict[str, int]) -> None:
        """Start claimed tasks in reserved slots, and subtract these from what is left."""
        for each in claimed:
            namespace = each.task.key.namespace
            assert left[namespace] > 0, "claimed more tasks than there are slots"
            left[namespace] -= 1
            self.slots.start(each.task)

    def _give_back(self, left: Mapping[str, int]) -> None:
        for namespace, count in left.items():
            if count:
                self.slots.give_back(namespace, count)

    async def _reserve(self, due: Due) -> Namespace | None:
        name = due.key.namespace
        try:
            namespace = await self.namespaces.lookup(name)
        except errors.NamespaceNotFoundError:
            return None
        # In a namespace with a backlog the task queues there: the oldest go first.
        backlog = self.slots.has_backlog(name)
        if backlog or not self.slots.reserve_up_to(namespace, 1):
            self.slots.mark_backlog(name)
            return None
        # Whether it is a timer is not known.
        if not self.rates.take_timers(namespace, 1, oldest=False):
            self.slots.give_back(name)
            self.slots.mark_backlog(name)
            return None
        return namespace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    claimer: Claimer
    pool: Pool
    effects: EffectDispatcher
    context: Context

    async def run(self) -> None:
        queue = self.effects.due_queue
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            due = queue.take_due(self.context.scanner.batch_max)
            if not due:
                queue.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(queue.wait_seconds()):
                        await queue.changed.wait()
                continue
            try:
                await self._claim(due)
                backoff.reset()
            except errors.StorageUnavailableError as error:
                _log.warning("timers not claimed", extra={"why": error.why, "count": len(due)})
                await asyncio.sleep(backoff.pause())
                for each in due:
                    queue.add(each, as_of=each.due_at)
            except errors.StorageRefusedError as error:
                # PostgreSQL cannot read one of them: the scan tries the others again.
                _log.error("timers not claimed", extra={"why": str(error), "count": len(due)})
                await asyncio.sleep(backoff.pause())

    async def _claim(self, due: Sequence[Due]) -> None:
        begun_at = self.context.clock.monotonic()
        claimed, wanted_count = await self.claimer.claim_tasks(self.pool, due)
        if not wanted_count:
            # All of them joined backlogs. Many of these in a row must not block the event loop.
            await asyncio.sleep(0)
            return
        self.context.measures.claimed(claimed, self.context.clock.monotonic() - begun_at)
        if claimed:
            self.context.observers.tell("timers_claimed", count=len(claimed))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Fills free slots with due tasks, in turns: see ``core/slots.py``."""

    claimer: Claimer
    pool: Pool
    context: Context

    async def run(self) -> None:
        """Claim whenever a namespace has both a backlog and room; ends only by cancellation."""
        slots = self.claimer.slots
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            await slots.room_made.wait()
            slots.room_made.clear()
            misses = self.context.backoff(*_MISS_SECONDS)
            left = _MISSES_MAX
            while backlogs := slots.backlogs():
                try:
                    rooms = self.claimer.rooms(await self._namespaces(backlogs))
                    if not rooms:
                        break
                    found = await self._claim(rooms)
                    left = _MISSES_MAX if found else left - 1
                    empty = [room for room in rooms if room.namespace not in found]
                    if await self._clear(backlogs, empty, sure=left == 0) and not found:
                        await asyncio.sleep(misses.pause())
                    backoff.reset()
                except errors.StorageError as error:
                    _log.warning("backlog not claimed", extra={"why": str(error)})
                    await asyncio.sleep(backoff.pause())

    async def _namespaces(self, backlogs: Mapping[str, int]) -> list[Namespace]:
        namespaces: list[Namespace] = []
        for name, mark in backlogs.items():
            try:
                namespaces.append(await self.claimer.namespaces.lookup(name))
            except errors.NamespaceNotFoundError:
                self.claimer.slots.clear_backlog(name, mark)
        return namespaces

    async def _claim(self, rooms: Sequence[Room]) -> set[str]:
        begun_at = self.context.clock.monotonic()
        claimed = await self.claimer.claim(self.pool, rooms, overdue=_NOT_AT_ALL, wait=True)
        self.context.measures.claimed(claimed, self.context.clock.monotonic() - begun_at)
        self.context.observers.tell("backlog_claimed", count=len(claimed))
        return {each.task.key.namespace for each in claimed}

    async def _clear(
        self, backlogs: Mapping[str, int], empty: Sequence[Room], *, sure: bool
    ) -> bool:
        """Clear the backlogs in which nothing is due; return whether one stays.

        A claim also comes back empty if another replica took what it had chosen. If `sure`, the
        backlogs are cleared all the same: their tasks are locked, and left to the scan. Timers that
        wait for a quota mark theirs again once there is room.
        """
        asked = [] if sure else [room.namespace for room in empty if not room.requests_only]
        due: Collection[str] = ()
        if asked:
            due = await self.claimer.claims.find_overdue(
                self.pool, sorted(asked), overdue=_NOT_AT_ALL
            )
        for room in empty:
            if room.namespace not in due:
                # Whatever was marked after `backlogs` was read keeps the backlog open.
                self.claimer.slots.clear_backlog(room.namespace, backlogs[room.namespace])
        return bool(due)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueScan:
    claimer: Claimer
    pool: Pool
    effects: EffectDispatcher
    context: Context

    async def run_called(self) -> None:
        """Take over due tasks whenever another replica asks; ends only by cancellation."""
        called = self.effects.replies.work_is_due
        while True:
            await called.wait()
            called.clear()
            try:
                await self._claim_overdue(_NOT_AT_ALL)
            except errors.StorageError as error:
                # The scan finds them a little later.
                _log.warning("due tasks not taken over", extra={"why": str(error)})

    async def scan(self) -> None:
        await self.claimer.namespaces.refresh()
        if self.claimer.slots.draining:
            return
        await self._look_ahead()
        for each in await self._claim_overdue(self.context.scanner.overdue):
            self.context.metrics.scan_found.add(1, (each.task.key.namespace, each.task.task_type))
            self.context.observers.tell(
                "scan_found",
                task_id=each.task.task_id,
                task_type=each.task.task_type,
                set_by=each.set_by,
            )

    async def _look_ahead(self) -> None:
        scanner = self.context.scanner
        rooms = [
            Room(
                namespace=namespace.name,
                limit=scanner.batch_max,
                expires_after=namespace.step_timeout,
            )
            for namespace in self.claimer.namespaces.known()
        ]
        for _ in range(PAGES_MAX):
            upcoming, read_at = await self.claimer.claims.find_upcoming(
                self.pool,
                rooms,
                horizon=scanner.horizon,
                lease_timeout=self.context.replica.lease_timeout,
            )
            for due in upcoming:
                assert read_at is not None, "tasks come with PostgreSQL's instant"
                self.effects.due_queue.add(due, as_of=read_at)
            rooms = _following(rooms, upcoming)
            if not rooms:
                return

    async def _claim_overdue(self, since: dt.timedelta) -> Sequence[Claimed]:
        """Claim what is overdue; return what nothing but a scan would have found."""
        known = self.claimer.namespaces.known()
        begun_at = self.context.clock.monotonic()
        overdue = await self.claimer.claims.find_overdue(
            self.pool, [namespace.name for namespace in known], overdue=since
        )
        late = [namespace for namespace in known if namespace.name in overdue]
        # A backlog is claimed without a scan, for example after a pause; and timers that wait for a
        # quota in another replica are not lost.
        backlogs = {
            it.name
            for it in late
            if it.quotas.timers_per_second or self.claimer.slots.has_backlog(it.name)
        }
        rooms = self.claimer.rooms(late)
        claimed: Sequence[Claimed] = ()
        if rooms:
            claimed = await self.claimer.claim(self.pool, rooms, overdue=since, wait=False)
        seconds = self.context.clock.monotonic() - begun_at
        self.context.measures.claimed(claimed, seconds)
        self.context.measures.found_nothing(
            (each.name for each in known if each.name not in overdue), seconds
        )
        room = {each.namespace: each.limit for each in rooms}
        taken = collections.Counter(each.task.key.namespace for each in claimed)
        for namespace in late:
            # New requests must not overtake what found no slot.
            if taken[namespace.name] == room.get(namespace.name, 0):
                self.claimer.slots.mark_backlog(namespace.name)
        # What the due queue knows would have been claimed, too: this replica was short of CPU.
        return [
            each
            for each in claimed
            if each.task.key.namespace not in backlogs
            and not self.effects.due_queue.knows(each.task.task_id)
        ]


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
