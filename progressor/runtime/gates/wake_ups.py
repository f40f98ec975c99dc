"""GateWakeUps: sees to what statements tell of gates.

A statement that leaves a gate promotes the next task in its own transaction; that one is
claimed here. What the statement would have had to lock against the order of locks, and another
held, it tells instead; it is looked at here at once, in a transaction that locks in order and
waits. And a task that waits for an instant is looked at when that comes. So no scan is needed, but
where a replica dies in between (``find_idle_gates``).
"""

import asyncio
import collections
import contextlib
import datetime as dt
import heapq
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.process import process_key
from progressor.runtime.core.due_queue import DueQueue
from progressor.runtime.gates.lowered_gates import LoweredGates
from progressor.storage.postgres.backoff import Backoff, steady
from progressor.storage.processes.settlements import Due
from progressor.storage.rows.gate_effects import Again, Later, Promoted

_log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 0.01
_BACKOFF_SECONDS_MAX = 1.0
# What is due by our count is due by PostgreSQL's; and who looks at a locked process again at once
# would turn in circles.
_MARGIN_SECONDS = 0.002

_LOCKED_SECONDS = 0.1

AGAIN_MAX = 10_000
"""Things to be looked at again; beyond that the scan finds them."""

LATER_MAX = 100_000
"""Tasks to be looked at later; likewise."""


class Gates(Protocol):
    """What is needed of storage."""

    async def look_again(self, namespace: str, again: Sequence[Again]) -> Promoted:
        """Promote what these have places for."""

    async def promote_due(self, namespaces: Sequence[str]) -> Promoted:
        """Look at tasks whose instant has come."""


class GateWakeUps:
    """Takes what statements tell of gates."""

    def __init__(
        self,
        *,
        gates: Gates,
        due_queue: DueQueue,
        clock: Clock,
        horizon_seconds: float,
        lowered_gates: LoweredGates,
        jitter: Callable[[], float] = steady,
    ) -> None:
        self._gates = gates
        self._due_queue = due_queue
        self._clock = clock
        self._horizon = horizon_seconds
        self._lowered_gates = lowered_gates
        self._jitter = jitter
        # A dict for its order: oldest first.
        self._again: dict[Again, None] = {}
        # What others hold locked: one of them is tried at a time, so that nothing else waits.
        self._held: dict[Again, None] = {}
        self._later: dict[int, float] = {}
        self._heap: list[tuple[float, int, Later]] = []
        self._order = itertools.count()
        self._news = asyncio.Event()

    def heard(self, promoted: Promoted) -> None:
        """Take what a statement has told; at once, without waiting."""
        if promoted.due or promoted.upcoming:
            now = self._clock.now()
            for key, task_id in promoted.due:
                self._due_queue.add(Due(key=key, task_id=task_id, due_at=now), told_at=now)
            for each in promoted.upcoming:
                due_at = now + dt.timedelta(seconds=each.seconds)
                self._due_queue.add(
                    Due(key=each.key, task_id=each.task_id, due_at=due_at), told_at=now
                )
        for later in promoted.later:
            self._note(later)
        for again in promoted.again[: max(0, AGAIN_MAX - len(self._again))]:
            self._again[again] = None
        self._lowered_gates.heard(promoted.lowered)
        if promoted.again or promoted.later:
            self._news.set()

    async def run(self) -> None:
        """Process all gate wake-ups until cancelled."""
        backoff = Backoff(first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self._jitter)
        while True:
            # What is held is tried anyway; told of it once more, nobody else has to wait.
            taken = {again: None for again in self._again if again not in self._held}
            self._again = {}
            namespaces = self._take_due()
            if not taken and not namespaces and not self._held:
                await self._next()
                continue
            try:
                await self._promote(namespaces)
                namespaces = []
                for namespace, mine in _by_namespace(taken).items():
                    self._held |= dict.fromkeys(await self._look(namespace, mine))
                    for again in mine:
                        del taken[again]
                if await self._is_let_go():
                    backoff.reset()
                else:
                    await self._next(backoff.pause())
            except errors.StorageError as error:
                # PostgreSQL's absence may last.
                _log.info("gates not looked at yet", extra={"why": str(error)})
                await asyncio.sleep(backoff.pause())
                self._again = taken | self._again
                self._put_back(namespaces)

    async def _promote(self, namespaces: Sequence[str]) -> None:
        """Look at those of some namespaces whose instant has come, but for what is locked."""
        if not namespaces:
            return
        try:
            self.heard(await self._gates.promote_due(namespaces))
        except errors.StorageLockedError as error:
            if len(namespaces) == 1:
                _log.info("gates not looked at yet", extra={"why": str(error)})
                self._put_back(namespaces, _LOCKED_SECONDS)
                return
            for name in namespaces:
                await self._promote([name])

    async def _look(self, namespace: str, again: Sequence[Again]) -> Sequence[Again]:
        """Look at the reported gates of a namespace; return those that others hold locked."""
        try:
            self.heard(await self._gates.look_again(namespace, again))
        except errors.StorageLockedError as error:
            if len(again) == 1:
                _log.info("gates not looked at yet", extra={"why": str(error)})
                return again
        else:
            return ()
        middle = len(again) // 2
        held = await self._look(namespace, again[:middle])
        return [*held, *await self._look(namespace, again[middle:])]

    async def _is_let_go(self) -> bool:
        """Look at one of those that were locked; if it is let go, all are to be looked at."""
        if not self._held:
            return True
        first = next(iter(self._held))
        if await self._look(first.namespace, [first]):
            self._held[first] = self._held.pop(first)  # the others come first the next time
            return False
        del self._held[first]
        self._again, self._held = self._held | self._again, {}
        return True

    def _put_back(self, namespaces: Sequence[str], seconds: float = 0.0) -> None:
        for name in namespaces:
            self._put(self._clock.monotonic() + seconds, Later(process_key(name, ""), 0, 0.0))

    def _note(self, later: Later) -> None:
        if later.seconds > self._horizon or len(self._heap) >= LATER_MAX:
            return
        at = self._clock.monotonic() + later.seconds + _MARGIN_SECONDS
        known = self._later.get(later.task_id)
        if known is not None and known <= at:
            return
        self._later[later.task_id] = at
        self._put(at, later)

    def _put(self, at: float, later: Later) -> None:
        heapq.heappush(self._heap, (at, next(self._order), later))

    def _take_due(self) -> list[str]:
        """Take the namespaces of all tasks whose instant has come."""
        now, names = self._clock.monotonic(), dict[str, None]()
        while self._heap and self._heap[0][0] <= now:
            at, _, later = heapq.heappop(self._heap)
            if self._later.get(later.task_id, at) == at:
                self._later.pop(later.task_id, None)
                names[later.key.namespace] = None
        return list(names)

    async def _next(self, longest: float | None = None) -> None:
        """Wait for news, or until the next instant comes, for so many seconds at the longest."""
        if self._again:
            return
        self._news.clear()
        seconds = longest
        if self._heap:
            until = max(0.0, self._heap[0][0] - self._clock.monotonic())
            seconds = until if seconds is None else min(seconds, until)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()


def _by_namespace(taken: dict[Again, None]) -> dict[str, list[Again]]:
    found: dict[str, list[Again]] = collections.defaultdict(list)
    for again in taken:
        found[again.namespace].append(again)
    return found
