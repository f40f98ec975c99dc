"""Workers: how many steps of each namespace this replica carries at once, and which.

A *place* is reserved before a task is leased, so that no lease waits for a worker. Where tasks are
due that found no place, the namespace has a *backlog*: until it is gone, places that become free go
to the backlog, and a request that has just come joins it.

Who gets a place of two, by turns: the oldest of all that is due, and the oldest request. So behind
100,000 timers that came due at once a fresh call waits for calls before it and no timer; requests
among each other keep their order, timers theirs; and neither can starve the other, since what is
oldest of all is next but one at worst.
"""

import asyncio
import contextvars
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask


@dataclasses.dataclass(slots=True)
class _NamespaceSlots:
    """The places of one namespace."""

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
    """The places of all namespaces, and the steps that fill them."""

    def __init__(self, carry: Callable[[RunningTask], Awaitable[None]]) -> None:
        self._carry = carry
        self._namespaces: dict[str, _NamespaceSlots] = {}
        self._busy_total = 0
        self._group: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.suspended = False
        """Whether no lease may be taken: what is leased now would be lost already."""
        self.room_made = asyncio.Event()
        """Set when a namespace with a backlog may have a free place."""

    async def run(self, stop: asyncio.Event) -> None:
        """Carry what is started until `stop`, and then until the last step has ended."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await stop.wait()
            await self._idle.wait()
            self._group = None

    async def idle(self) -> None:
        """Wait until no place is taken."""
        await self._idle.wait()

    @property
    def closed(self) -> bool:
        """Whether no places are given at the moment."""
        return self.draining or self.suspended

    def reserve(self, namespace: Namespace) -> bool:
        """Reserve a slot for a new request if no other is ahead of it."""
        own = self._namespace_slots(namespace)
        if self.closed or own.has_backlog or own.busy >= own.size:
            return False
        self._take(own, 1)
        return True

    def reserve_up_to(self, namespace: Namespace, wanted: int) -> int:
        """Reserve places for tasks that are due; return how many, 0 .. `wanted`."""
        own = self._namespace_slots(namespace)
        count = 0 if self.closed else min(wanted, own.free)
        self._take(own, count)
        return count

    def give_back(self, namespace: str, count: int = 1) -> None:
        """Return places that were reserved and not needed."""
        own = self._namespaces[namespace]
        assert own.busy >= count, "more slots given back than were taken"
        own.busy -= count
        self._busy_total -= count
        if own.has_backlog:
            self.room_made.set()
        if not self._busy_total:
            self._idle.set()

    def start(self, task: RunningTask) -> None:
        """Carry a leased task in the place that was reserved for it."""
        assert self._group is not None, "a task was leased while no workers run"
        assert self._namespaces[task.key.namespace].busy > 0, "a task was leased without a place"
        # Without a context of its own, all that follows on the process would be logged under the
        # trace of the request that brought the first of it.
        self._group.create_task(
            self._fill(task), name=f"step {task.task_id}", context=contextvars.Context()
        )

    def mark_backlog(self, namespace: str) -> None:
        """Note that a due task of this namespace found no free slot."""
        own = self._namespaces[namespace]
        own.marked += 1
        if own.free:
            self.room_made.set()

    def backlogs(self) -> dict[str, int]:
        """Return the namespaces with a backlog and free places, with their marks."""
        return {
            name: own.marked
            for name, own in self._namespaces.items()
            if own.has_backlog and own.free
        }

    def next_turn(self, namespace: str) -> bool:
        """Tell whether the next place is a request's before it is anybody's; each time the other.

        A claim is often for a single place, so the turns are counted here and not within a claim.
        """
        own = self._namespaces[namespace]
        own.requests_first = not own.requests_first
        return own.requests_first

    def clear_backlog(self, namespace: str, mark: int) -> None:
        """Note that nothing was due when the backlog was at `mark`; later marks stay."""
        own = self._namespaces[namespace]
        own.looked_at = max(own.looked_at, mark)

    def has_backlog(self, namespace: str) -> bool:
        """Return whether due tasks of a namespace may have found no free slot."""
        own = self._namespaces.get(namespace)
        return own is not None and own.has_backlog

    @property
    def busy_total(self) -> int:
        """The places taken in all namespaces."""
        return self._busy_total

    def usage(self) -> Sequence[tuple[str, int, int]]:
        """Return the places taken and free of each namespace, from any thread."""
        return [(name, own.busy, own.free) for name, own in tuple(self._namespaces.items())]

    def busy_count(self, namespace: str) -> int:
        """Return the places taken in a namespace."""
        own = self._namespaces.get(namespace)
        return 0 if own is None else own.busy

    async def _fill(self, task: RunningTask) -> None:
        namespace = task.key.namespace
        try:
            await self._carry(task)
        finally:
            self.give_back(namespace)

    def _namespace_slots(self, namespace: Namespace) -> _NamespaceSlots:
        own = self._namespaces.get(namespace.name)
        if own is None:
            own = self._namespaces[namespace.name] = _NamespaceSlots(namespace.worker_count_max)
        # A smaller size takes effect as steps end; a larger one at once.
        own.size = namespace.worker_count_max
        return own

    def _take(self, own: _NamespaceSlots, count: int) -> None:
        if count:
            own.busy += count
            self._busy_total += count
            self._idle.clear()
