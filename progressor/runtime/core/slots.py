"""Slots: how many steps of each namespace this replica runs at once, and which.

A slot is reserved before a task is leased, so that no lease waits for a worker. A namespace with
due tasks that found no free slot has a *backlog*: until it is gone, slots that become free go to
the backlog, and a new request joins it.

Slots go in turn to the oldest due task of any kind and to the oldest request. So behind 100,000
timers that came due at once, a new call waits for the calls before it and for no timer. Requests
keep their order among each other, and so do timers. Neither can starve the other, since the oldest
of all gets the next slot but one at worst.

Two things keep a namespace from filling its free slots: a breaker, while its processor takes no
steps, and a pause. What is due then joins the backlog.
"""

import asyncio
import contextvars
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask
from progressor.processor.breaker import Breaker


@dataclasses.dataclass(slots=True)
class _NamespaceSlots:
    size: int
    busy: int = 0
    # Counts the reasons to look for a backlog; `looked_at` is the count when nothing was found.
    marked: int = 0
    looked_at: int = 0
    requests_first: bool = False

    @property
    def has_backlog(self) -> bool:
        return self.marked > self.looked_at

    @property
    def free(self) -> int:
        return max(0, self.size - self.busy)


class Slots:
    def __init__(
        self,
        run_step: Callable[[RunningTask], Awaitable[None]],
        *,
        breakers: Mapping[str, Breaker] | None = None,
        room_made: asyncio.Event | None = None,
        paused: Collection[str] = (),
    ) -> None:
        """Take what limits the namespaces: ``paused`` ones start nothing, whatever is due."""
        self._run_step = run_step
        self._paused = paused
        self._breakers = {} if breakers is None else breakers
        self._namespaces: dict[str, _NamespaceSlots] = {}
        self.busy_total = 0
        """The busy slots of all namespaces."""
        self._group: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.suspended = False
        """Whether no lease may be taken: what is leased now would be lost already."""
        self.room_made = asyncio.Event() if room_made is None else room_made
        """Set when a namespace with a backlog may have a free slot."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run what is started until `stop`, and then until the last step has ended."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await stop.wait()
            await self._idle.wait()
            self._group = None

    async def idle(self) -> None:
        await self._idle.wait()

    @property
    def closed(self) -> bool:
        return self.draining or self.suspended

    def reserve(self, namespace: Namespace) -> bool:
        """Reserve a slot for a new request if no other is ahead of it."""
        own = self._of(namespace)
        if self.closed or own.has_backlog or own.busy >= own.size:
            return False
        if self._paused and namespace.name in self._paused:
            return False
        if self._breakers and not self._pass_breaker(namespace, 1):
            return False
        self._take(own, 1)
        return True

    def reserve_up_to(self, namespace: Namespace, wanted: int) -> int:
        """Reserve slots for due tasks; return how many, 0 to `wanted`."""
        own = self._of(namespace)
        is_closed = self.closed or (self._paused and namespace.name in self._paused)
        count = 0 if is_closed else min(wanted, own.free)
        if count and self._breakers:
            count = self._pass_breaker(namespace, count)
        self._take(own, count)
        return count

    def give_back(self, namespace: str, count: int = 1) -> None:
        own = self._namespaces[namespace]
        assert own.busy >= count, "more slots given back than were taken"
        own.busy -= count
        self.busy_total -= count
        if own.has_backlog:
            self.room_made.set()
        if not self.busy_total:
            self._idle.set()

    def start(
        self,
        task: RunningTask,
        due: Callable[[RunningTask], Awaitable[RunningTask]] | None = None,
    ) -> None:
        """Run the step of a leased task; `due` waits until it may begin, None: it may."""
        assert self._group is not None, "a task was leased while no workers run"
        assert self._namespaces[task.key.namespace].busy > 0, "a task was leased without a slot"
        # Without a context of its own, everything that follows on the process would be logged
        # under the trace of the request that brought the first task.
        self._group.create_task(
            self._fill(task, due), name=f"step {task.task_id}", context=contextvars.Context()
        )

    def mark_backlog(self, namespace: str) -> None:
        """Record that a due task of this namespace found no free slot."""
        own = self._namespaces[namespace]
        own.marked += 1
        if own.free:
            self.room_made.set()

    def backlogs(self) -> dict[str, int]:
        return {
            name: own.marked
            for name, own in self._namespaces.items()
            if own.has_backlog and own.free and not self._is_held_back(name)
        }

    def is_limited(self, namespace: str) -> bool:
        """Return whether a breaker limits how many steps of a namespace may start."""
        return namespace in self._breakers

    def hands_back(self, task: RunningTask) -> bool:
        """Return whether a task was leased too late: its step must not begin.

        Its claim, its request or the settlement before it was in flight when the drain or the pause
        began. A request is served in a drain, since its caller waits here.
        """
        if self.draining and task.claim is not None:
            return True
        return self.is_paused(task.key.namespace)

    def is_paused(self, namespace: str) -> bool:
        return bool(self._paused) and namespace in self._paused

    def look_for_due(self, namespace: Namespace) -> None:
        """Have due tasks of a namespace claimed as slots allow, whether or not any are known."""
        self._of(namespace)
        self.mark_backlog(namespace.name)

    def next_turn(self, namespace: str) -> bool:
        """Return whether the next slot goes to the oldest request first; alternates.

        A claim is often for a single slot, so turns are counted here and not within a claim.
        """
        own = self._namespaces[namespace]
        own.requests_first = not own.requests_first
        return own.requests_first

    def clear_backlog(self, namespace: str, mark: int) -> None:
        """Record that nothing was due when the backlog was at `mark`; later marks stay."""
        own = self._namespaces[namespace]
        own.looked_at = max(own.looked_at, mark)

    def has_backlog(self, namespace: str) -> bool:
        own = self._namespaces.get(namespace)
        return own is not None and own.has_backlog

    def usage(self) -> Sequence[tuple[str, int, int]]:
        """Return the busy and the free slots of each namespace, from any thread."""
        return [(name, own.busy, own.free) for name, own in tuple(self._namespaces.items())]

    async def _fill(
        self, task: RunningTask, due: Callable[[RunningTask], Awaitable[RunningTask]] | None
    ) -> None:
        try:
            if due is not None:
                task = await due(task)
            await self._run_step(task)
        finally:
            self.give_back(task.key.namespace)

    def _pass_breaker(self, namespace: Namespace, wanted: int) -> int:
        """Return how many of the steps may start, and count them."""
        breaker = self._breakers.get(namespace.name)
        if breaker is None:
            return wanted
        breaker.patience = namespace.unreachable_patience
        count = min(wanted, breaker.allowance())
        breaker.take(count)
        return count

    def _is_held_back(self, namespace: str) -> bool:
        if self.is_paused(namespace):
            return True
        breaker = self._breakers.get(namespace) if self._breakers else None
        return breaker is not None and not breaker.allowance()

    def _of(self, namespace: Namespace) -> _NamespaceSlots:
        own = self._namespaces.get(namespace.name)
        if own is None:
            own = self._namespaces[namespace.name] = _NamespaceSlots(namespace.worker_count_max)
        # A smaller size takes effect as steps end; a larger one at once.
        own.size = namespace.worker_count_max
        return own

    def _take(self, own: _NamespaceSlots, count: int) -> None:
        if count:
            own.busy += count
            self.busy_total += count
            self._idle.clear()
