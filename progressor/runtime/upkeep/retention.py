"""Retention: deletes finished processes and old tasks, in one replica at a time.

What is old is deleted in small transactions, one after another while there is any. So the tables
stay as large as what is kept, as long as one connection can delete what all replicas finish.

`TaskScan` reads ``tasks`` by ranges of pages, since no index says when a task ended. It remembers
when the next task of each range is due: a task that has not ended is due no sooner than its
retention from now. So a table in which nothing is due is read once, and then again when something
may be. Reading that deletes nothing takes up to 1 % of a connection.
"""

import array
import asyncio
import contextlib
import dataclasses
import datetime as dt
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping

from progressor.runtime.core.context import Context
from progressor.storage.access.access import Access
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.replicas.replicas import Replicas
from progressor.storage.replicas.retention import Retention
from progressor.telemetry.metrics.registry import Metrics

REPLIES_AGE = dt.timedelta(minutes=10)
REPLICAS_AGE = dt.timedelta(hours=1)

BATCH_SECONDS = 0.5
"""A transaction that takes longer is followed by smaller ones: rows may be large."""

RANGE_PAGES = 512
"""Of 8 kB; about as many tasks as one transaction deletes in BATCH_SECONDS."""

READ_SHARE = 0.01
"""The share of time for reading tasks of which none is old."""

READ_SHARE_OF_DELETIONS = 0.1
"""The same where some are, beyond DELETION_SECONDS for each."""

DELETION_SECONDS = 0.0002

LATE_SHARE = 0.05
"""The share of its retention by which a task may be deleted later, so that it goes with others."""

_NOT_READ = -math.inf


Delete = Callable[[], Awaitable[bool]]
"""Deletes a batch; returns whether more is left."""


class Round:
    """The right to delete, which one replica has for as long as it goes on to renew it."""

    def __init__(self, retention: Retention, context: Context) -> None:
        self._retention = retention
        self._clock = context.clock
        self._interval = context.scanner.retention_interval
        self._asked_at = -math.inf
        self._is_ours = False

    async def is_ours(self) -> bool:
        """Return whether this replica deletes; PostgreSQL is asked once an interval."""
        now = self._clock.monotonic()
        if now - self._asked_at >= self._interval.total_seconds():
            self._is_ours = await self._retention.hold_round(lease=3 * self._interval)
            self._asked_at = now
        return self._is_ours


class _Batches:
    """How many rows a transaction deletes, fewer while they take long; and how long one took."""

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._limit_max = self.limit = context.scanner.retention_batch_max
        self.seconds = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        begun_at = self._clock.monotonic()
        yield
        self.seconds = self._clock.monotonic() - begun_at
        if self.seconds > BATCH_SECONDS:
            self.limit = max(1, self.limit // 2)
        else:
            self.limit = min(self._limit_max, 2 * self.limit)


@dataclasses.dataclass(slots=True, kw_only=True)
class RetentionScan:
    """One round of deleting, by turns of what is old, until nothing is.

    In a paused namespace nothing is deleted: an operator who has restored a backup may want to see
    all of it.
    """

    retention: Retention
    upkeep_round: Round
    bulks: Bulks
    replicas: Replicas
    namespaces: Namespaces
    access: Access
    context: Context
    _batches: _Batches = dataclasses.field(init=False)
    _overdue: dict[str, float] = dataclasses.field(default_factory=dict)
    """By namespace, for how many seconds the process deleted last should have been gone."""

    def __post_init__(self) -> None:
        self._batches = _Batches(self.context)

    @property
    def overdue(self) -> float:
        return max(self._overdue.values(), default=0.0)

    async def scan(self) -> None:
        await self.replicas.delete_dead(retention=REPLICAS_AGE)
        await self.access.write_used()
        await self.access.delete_ended()
        rest: list[Delete] = [self._delete_replies, self.bulks.delete]
        rest += [
            self._deletion(it.name, it.finished_process_retention)
            for it in self.namespaces.known()
            if it.finished_process_retention is not None and it.pause is None
        ]
        while rest and await self.upkeep_round.is_ours():
            rest = [delete for delete in rest if await delete()]
        self._overdue.clear()

    def _deletion(self, namespace: str, age: dt.timedelta) -> Delete:
        after: dt.datetime | None = None

        async def delete() -> bool:
            nonlocal after
            with self._batches.timed():
                found = await self.retention.delete_finished(
                    namespace, age=age, limit=self._batches.limit, after=after
                )
            after = found.reached_at
            self._overdue[namespace] = found.overdue or 0.0
            self._count("process", found.deleted_count)
            return found.more

        return delete

    async def _delete_replies(self) -> bool:
        limit = self.context.scanner.retention_batch_max
        count = await self.retention.delete_old_replies(age=REPLIES_AGE, limit=limit)
        self._count("reply", count)
        return count == limit

    def _count(self, kind: str, count: int) -> None:
        self.context.metrics.retention_deleted.add(count, (kind,))


class TaskScan:
    """One round of deleting old tasks, in the ranges of pages that may have any."""

    def __init__(
        self,
        *,
        retention: Retention,
        upkeep_round: Round,
        namespaces: Namespaces,
        context: Context,
    ) -> None:
        self._retention = retention
        self._round = upkeep_round
        self._namespaces = namespaces
        self._context = context
        self._batches = _Batches(context)
        self._ages: Mapping[str, dt.timedelta] = {}
        self._pages = RANGE_PAGES
        self._due = array.array("d")
        """By range: the instant from which it is read, by the monotonic clock."""
        self.overdue = 0.0
        """For how many seconds the range that is being read has waited."""

    async def scan(self) -> None:
        ages = {
            it.name: it.task_retention
            for it in self._namespaces.known()
            if it.task_retention is not None and it.pause is None
        }
        if not ages or not await self._round.is_ours():
            self._ages = {}
            return
        await self._measure(ages)
        for number, due_at in enumerate(self._due):
            now = self._context.clock.monotonic()
            if due_at > now:
                continue
            if not await self._round.is_ours():
                break
            self.overdue = now - due_at if due_at > _NOT_READ else 0.0
            self._due[number] = now + await self._delete_in(number)
        self.overdue = 0.0

    async def _measure(self, ages: Mapping[str, dt.timedelta]) -> None:
        """Divide the table as it is now, anew for other ages: a shorter one makes more due."""
        table = await self._retention.measure_tasks()
        pages = max(1, RANGE_PAGES // table.partition_count)
        if (pages, ages) != (self._pages, self._ages):
            self._pages, self._ages, self._due = pages, ages, array.array("d")
        count = math.ceil(table.page_count / pages)
        self._due = self._due[:count]
        self._due.extend([_NOT_READ] * (count - len(self._due)))

    async def _delete_in(self, number: int) -> float:
        """Delete the old tasks of a range; return after how many seconds to read it again."""
        pages = range(number * self._pages, (number + 1) * self._pages)
        while True:
            limit = self._batches.limit
            with self._batches.timed():
                found = await self._retention.delete_old_tasks(pages, self._ages, limit=limit)
            self._context.metrics.retention_deleted.add(found.deleted_count, ("task",))
            await asyncio.sleep(self._pause(found.deleted_count))
            if found.deleted_count < limit:
                break
        age = min(self._ages.values()).total_seconds()
        interval = self._context.scanner.retention_interval.total_seconds()
        soonest = age if found.due_in is None else min(age, found.due_in)
        return max(soonest, LATE_SHARE * age, interval)

    def _pause(self, deleted_count: int) -> float:
        share = READ_SHARE_OF_DELETIONS if deleted_count else READ_SHARE
        read_seconds = max(0.0, self._batches.seconds - deleted_count * DELETION_SECONDS)
        longest = self._context.scanner.retention_interval.total_seconds()
        return min(longest, read_seconds * (1 / share - 1))


def report_overdue(metrics: Metrics, retention: RetentionScan, tasks: TaskScan) -> None:
    """Have metrics read how far deletions are behind."""
    metrics.retention_overdue_age.read_from(
        lambda: [(("process",), retention.overdue), (("task",), tasks.overdue)]
    )
