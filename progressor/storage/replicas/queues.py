"""Queues: how many tasks wait, over all replicas, and for what."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.namespace import Namespace
from progressor.domain.views.activity import QUEUES_MAX, Activity, NamespaceQueue, QueueCounts
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.replicas.status import Watch

_SQL = statements.load("replicas/queues")

COUNT_MAX = 10_000
"""Up to which tasks are counted, of each cause in each namespace."""

ROWS_MAX = 100_000
"""Up to which tasks of each cause are counted at once in all namespaces together.

PostgreSQL takes 30 ms to count as many timers, half a second where they are retries.
"""

JOBS_MAX = 10_000
"""Up to which running jobs are counted, in all namespaces together."""

LATE_AFTER = dt.timedelta(seconds=5)
"""How long a schedule must be overdue to count as late."""

PAUSE = dt.timedelta(seconds=2)
"""From one count of a watch to the next, at the least."""

PATIENCE = dt.timedelta(seconds=1)
"""For a count that a caller waits for."""

REST = 9
"""How much longer than its last count a watch rests: it counts for a tenth of the time at most."""


class Queues:
    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def count(
        self, namespaces: Sequence[str], *, count_max: int = COUNT_MAX, rows_max: int = ROWS_MAX
    ) -> tuple[NamespaceQueue, ...]:
        """Count what waits in namespaces, each cause up to `count_max`.

        Where that could be too much, they share `rows_max` of each cause evenly; as much again is
        then shared by those for which it was too little, but for what waits for an instant of its
        own. So however much waits everywhere, a count costs the same; and where much waits in few,
        it is exact there.
        """
        if not namespaces:
            return ()
        limit = exact_below(len(namespaces), count_max=count_max, rows_max=rows_max)
        counted = await self._count(namespaces, limit)
        cut = [it.namespace for it in counted if _most(it) >= limit]
        limit_then = min(count_max, rows_max // max(1, len(cut)))
        if not cut or limit_then <= limit:
            return counted
        again = {each.namespace: each for each in await self._count(cut, limit_then)}
        return tuple(
            dataclasses.replace(
                again.get(each.namespace, each),
                timer_count=each.timer_count,
                run_at_count=each.run_at_count,
            )
            for each in counted
        )

    async def _count(self, namespaces: Sequence[str], limit: int) -> tuple[NamespaceQueue, ...]:
        return await self._context.read(
            NamespaceQueue,
            _SQL["count_waiting"],
            reads_only=True,
            namespace=list(namespaces),
            limit=limit,
            jobs_max=JOBS_MAX,
            late_after=LATE_AFTER,
        )


def _most(queue: NamespaceQueue) -> int:
    return max(
        queue.due_count,
        queue.retry_count,
        queue.behind_count,
        queue.order_count,
        queue.gate_count,
        queue.available_count,
        queue.process_failed_count,
    )


def exact_below(
    namespace_count: int, *, count_max: int = COUNT_MAX, rows_max: int = ROWS_MAX
) -> int:
    """Return up to which all causes are counted in each of so many namespaces.

    What is less is exact.
    """
    return max(1, min(count_max, rows_max // max(1, namespace_count)))


Busy = Callable[[], Mapping[str, int]]
"""Returns how much is running in the namespaces."""


class Counting(Protocol):
    async def count(self, namespaces: Sequence[str]) -> Sequence[NamespaceQueue]:
        """Count what waits in namespaces."""


class Namespaces(Protocol):
    def known(self) -> tuple[Namespace, ...]:
        """Return the namespaces in memory."""

    async def refresh(self) -> None:
        """Read all namespaces into memory."""


class QueueWatch:
    """The queues of all namespaces; callers share a recent count.

    Where much waits a count is long. So no caller waits long for one, and there is a rest after it
    that grows with what it took; what a scan counts in its own time is remembered too.
    """

    def __init__(self, *, queues: Counting, namespaces: Namespaces, clock: Clock) -> None:
        self._queues = queues
        self._namespaces = namespaces
        self._clock = clock
        self._known = QueueCounts()
        self._counted_at = float("-inf")
        self._next_at = float("-inf")
        self._counting = asyncio.Lock()

    async def count(self, namespaces: Sequence[str]) -> Sequence[NamespaceQueue]:
        """Count what waits in namespaces, at once and for as long as it takes; and remember it."""
        started_at = self._clock.monotonic()
        found = await self._queues.count(namespaces)
        # Of two counts at once the one that began later stays.
        if started_at >= self._counted_at:
            queues = tuple(sorted(found, key=lambda queue: queue.namespace))
            left_out = max(0, len(self._namespaces.known()) - len(queues))
            self._known = QueueCounts(
                queues=queues, left_out_count=left_out, exact_below=exact_below(len(queues))
            )
            self._counted_at = started_at
        return found

    async def counts(self, busy: Busy) -> QueueCounts:
        """Return the latest counts of waiting tasks; concurrent callers share one statement.

        Where PostgreSQL does not answer within PATIENCE, that is the count before, or none.

        Args:
            busy: Asked where there are too many namespaces: those are counted in which most is
                running.
        """
        if self._is_due():
            async with self._counting:
                if self._is_due():
                    await self._try_to_count(busy)
        if self._counted_at == float("-inf"):
            return self._known
        age = dt.timedelta(seconds=self._clock.monotonic() - self._counted_at)
        return dataclasses.replace(self._known, age=age)

    def _is_due(self) -> bool:
        counted_until = self._counted_at + PAUSE.total_seconds()
        return self._clock.monotonic() >= max(self._next_at, counted_until)

    async def _try_to_count(self, busy: Busy) -> None:
        """Count, unless it takes too long; cancelled, it leaves the count to who asks next."""
        started_at = self._clock.monotonic()
        # The rest of an answer is as good without: it must not fail for this.
        with contextlib.suppress(errors.StorageError, TimeoutError):
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await self.count(await self._chosen(busy))
        lasted = self._clock.monotonic() - started_at
        self._next_at = started_at + max(PAUSE.total_seconds(), (1 + REST) * lasted)

    async def _chosen(self, busy: Busy) -> Sequence[str]:
        if not self._namespaces.known():
            await self._namespaces.refresh()
        names = [namespace.name for namespace in self._namespaces.known()]
        if len(names) > QUEUES_MAX:
            running = busy()
            names.sort(key=lambda name: (-running.get(name, 0), name))
        return names[:QUEUES_MAX]


class Activities:
    """What the replicas are doing and what is waiting, at what that may cost: see both watches."""

    def __init__(self, *, watch: Watch, queues: QueueWatch) -> None:
        self._watch = watch
        self._queues = queues

    async def read(self) -> Activity:
        facts = await self._watch.facts()

        def busy() -> Counter[str]:
            found: Counter[str] = Counter()
            for replica in facts.replicas.values():
                for name, load in (replica.loads or {}).items():
                    found[name] += load.busy_count
            return found

        return Activity(facts=facts, counts=await self._queues.counts(busy))
