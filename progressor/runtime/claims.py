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
import types
from collections.abc import Collection, Iterable, Mapping, Sequence

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import TIMER_TYPES, RunningTask
from progressor.runtime.core.context import Context
from progressor.runtime.core.rates import Rates
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.queues import DUE_MARGIN_SECONDS, Timed
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

LEAD_SECONDS_MAX = 0.01
"""How long before its time a task is claimed at most, so that the claim is done by then."""

LEAD_DECAY = 0.9
"""How much of the lead is left after a claim that took less."""

GATHER_LEADS = 2
"""How many leads before its time a task is claimed together with others."""

TOGETHER_SECONDS = 0.003
"""How late a task starts at most so that others start with it."""

_ROUNDING_SECONDS = 1e-6
"""By how much sums of instants may differ; to wait for so little may pass no time at all."""

_NOT_AT_ALL = dt.timedelta()
_NOW: Mapping[int, "_Instant"] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class _Instant:
    """When a task that was leased ahead of its time is due."""

    come: asyncio.Event
    at: float
    clock: Clock

    async def wait(self, task: RunningTask) -> RunningTask:
        """Return the task as it starts: its claim could not tell how late."""
        await self.come.wait()
        late = self.clock.monotonic() - self.at + DUE_MARGIN_SECONDS
        return dataclasses.replace(task, started_at=task.started_at + dt.timedelta(seconds=late))


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

    async def claim_tasks(
        self, pool: Pool, taken: Sequence[Timed]
    ) -> tuple[Sequence[Claimed], int, Sequence[Timed]]:
        """Claim tasks of the due queue; each starts when it is due.

        Returns:
            What was claimed, how many tasks there was room for, and those that are not due yet and
            found none: they join the backlog only if that is still so when they are due.
        """
        now = self.context.clock.monotonic()
        wanted: list[Wanted] = []
        early: list[Timed] = []
        left: dict[str, int] = collections.Counter()
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_back, left)
            for timed in taken:
                key, task_id = timed.due.key, timed.due.task_id
                namespace = await self._find(key.namespace)
                if namespace is None:
                    continue
                if self._reserve(namespace):
                    left[namespace.name] += 1
                    expires_after = self.context.lease_of(namespace)
                    wanted.append(Wanted(key=key, task_id=task_id, expires_after=expires_after))
                elif timed.at > now:
                    early.append(timed)
                else:
                    self.slots.mark_backlog(namespace.name)
            claimed: Sequence[Claimed] = ()
            if wanted:
                ahead = max(0.0, taken[-1].at - now)
                claimed = await self.claims.claim_tasks(pool, wanted, ahead=ahead)
                self.start(claimed, left, self._instants(taken, sent_at=now))
        free = collections.Counter(it.key.namespace for it in wanted)
        free.subtract(it.task.key.namespace for it in claimed if it.task.task_type in TIMER_TYPES)
        for name, count in free.items():
            self.rates.give_back_timers(name, count)
        return claimed, len(wanted), early

    def _instants(self, taken: Sequence[Timed], *, sent_at: float) -> dict[int, _Instant]:
        """Return for each task that was not due when its claim was sent when it is.

        Tasks due within TOGETHER_SECONDS share one, at the time of the last, so that a frame to the
        processor holds several.
        """
        instants: dict[int, _Instant] = {}
        come, earliest = asyncio.Event(), float("inf")
        for at, _, due in reversed(taken):
            if at <= sent_at:
                break
            if at < earliest:
                come, earliest = asyncio.Event(), at - TOGETHER_SECONDS
                self._set(come, at)
            instants[due.task_id] = _Instant(come, at, self.context.clock)
        return instants

    def _set(self, come: asyncio.Event, at: float) -> None:
        """Set it when the instant has come, not before: a timer of uvloop may go off early.

        Within the margin it is due all the same, and waiting for so little would be a busy loop.
        """
        left = at - self.context.clock.monotonic()
        if left > DUE_MARGIN_SECONDS / 2:
            asyncio.get_running_loop().call_later(left, self._set, come, at)
        else:
            come.set()

    def start(
        self,
        claimed: Iterable[Claimed],
        left: dict[str, int],
        instants: Mapping[int, "_Instant"] = _NOW,
    ) -> None:
        """Start claimed tasks in reserved slots, and subtract these from what is left."""
        for each in claimed:
            namespace = each.task.key.namespace
            assert left[namespace] > 0, "claimed more tasks than there are slots"
            left[namespace] -= 1
            instant = instants.get(each.task.task_id)
            self.slots.start(each.task, None if instant is None else instant.wait)

    def _give_back(self, left: Mapping[str, int]) -> None:
        for namespace, count in left.items():
            if count:
                self.slots.give_back(namespace, count)

    async def _find(self, name: str) -> Namespace | None:
        try:
            return await self.namespaces.lookup(name)
        except errors.NamespaceNotFoundError:
            return None

    def _reserve(self, namespace: Namespace) -> bool:
        # In a namespace with a backlog the task queues there: the oldest go first.
        backlog = self.slots.has_backlog(namespace.name)
        if backlog or not self.slots.reserve_up_to(namespace, 1):
            return False
        # Whether it is a timer is not known.
        if not self.rates.take_timers(namespace, 1, oldest=False):
            self.slots.give_back(namespace.name)
            return False
        return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Claims each task so early that it is leased by the time it is due, and starts it then.

    A claim takes milliseconds, and the next one waits for it: claimed when it is due, a task starts
    late by up to two claims. So the *lead* is as long as claims have taken lately, and no longer
    than LEAD_SECONDS_MAX: a request that comes while a task waits for its time waits behind it.
    """

    claimer: Claimer
    pool: Pool
    effects: EffectDispatcher
    context: Context

    async def run(self) -> None:
        queue = self.effects.due_queue
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        lead = 0.0
        while True:
            seconds = queue.wait_seconds()
            if seconds is None or seconds - lead > _ROUNDING_SECONDS:
                queue.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if seconds is None else seconds - lead):
                        await queue.changed.wait()
                continue
            ahead = max(seconds, GATHER_LEADS * lead)
            taken = queue.take_due(self.context.scanner.batch_max, ahead=ahead)
            try:
                took = await self._claim(taken)
                lead = min(LEAD_SECONDS_MAX, max(took, LEAD_DECAY * lead)) if took else 0.0
                backoff.reset()
            except errors.StorageUnavailableError as error:
                _log.warning("timers not claimed", extra={"why": error.why, "count": len(taken)})
                await asyncio.sleep(backoff.pause())
                queue.put_back(taken)
            except errors.StorageRefusedError as error:
                # PostgreSQL cannot read one of them: the scan tries the others again.
                _log.error("timers not claimed", extra={"why": str(error), "count": len(taken)})
                await asyncio.sleep(backoff.pause())

    async def _claim(self, taken: Sequence[Timed]) -> float:
        """Claim tasks, and return how many seconds the lead needs."""
        begun_at = self.context.clock.monotonic()
        claimed, wanted_count, early = await self.claimer.claim_tasks(self.pool, taken)
        self.effects.due_queue.put_back(early)
        if not wanted_count:
            # No room for any of them. Many of these in a row must not block the event loop.
            await asyncio.sleep(0)
            return 0.0
        seconds = self.context.clock.monotonic() - begun_at
        self.context.measures.claimed(claimed, seconds)
        if claimed:
            self.context.observers.tell("timers_claimed", count=len(claimed))
        return 0.0 if early else seconds


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
