"""What this replica has to do soon, as the effects of writes report it: due tasks, gates and jobs.

Every queue is bounded. What does not fit is left to the scans, which find it in the tables.
"""

import asyncio
import datetime as dt
import heapq
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.storage.postgres.rows.effects import Again, Effects, Later, LoweredGate
from progressor.storage.steps.settlements import Due

# A result takes a moment to arrive, so a task that is due here is due at PostgreSQL; the margin
# covers clocks that run at different speeds.
DUE_MARGIN_SECONDS = 0.0005

# As above. Also, looking at a locked process again at once would be a busy loop.
_GATE_MARGIN_SECONDS = 0.002

AGAIN_MAX = 10_000
"""Gates, queues and orders to be looked at again."""

LATER_MAX = 100_000
"""Tasks to be looked at later."""

LOWERED_MAX = 10_000
"""Gates whose capacity was lowered."""

KEYS_MAX = 10_000
"""Jobs that need upkeep, and senders of messages."""


class Timed(NamedTuple):
    """A task of the due queue, and when it is due on the replica's monotonic clock."""

    at: float
    number: int
    """In the order in which they were added."""
    due: Due


class DueQueue:
    """At most `size_max` tasks that become due within `horizon`, by their due times.

    Due times are PostgreSQL's. A replica's own clock may be an hour off, so a due time is kept on
    its monotonic clock, as the distance from an instant that PostgreSQL has just returned.
    """

    def __init__(self, *, clock: Clock, horizon: dt.timedelta, size_max: int) -> None:
        self._clock = clock
        self._horizon = horizon
        self._size_max = size_max
        self._heap: list[Timed] = []
        self._task_ids: set[int] = set()
        self._in_hand: frozenset[int] = frozenset()
        self._order = itertools.count()
        self.changed = asyncio.Event()
        """Set when another task becomes the first to be due."""

    def add(self, due: Due, *, as_of: dt.datetime) -> None:
        """Add a task that was read at PostgreSQL's instant `as_of`."""
        ahead = due.due_at - as_of
        if ahead > self._horizon or len(self._heap) >= self._size_max:
            return
        at = self._clock.monotonic() + max(0.0, ahead.total_seconds()) + DUE_MARGIN_SECONDS
        self._push(Timed(at, next(self._order), due))

    def put_back(self, taken: Iterable[Timed]) -> None:
        for each in taken:
            self._push(each)

    def _push(self, timed: Timed) -> None:
        if timed.due.task_id in self._task_ids:
            return
        self._task_ids.add(timed.due.task_id)
        heapq.heappush(self._heap, timed)
        if self._heap[0] is timed:
            self.changed.set()

    def wait_seconds(self) -> float | None:
        """Return the seconds until the first task is due, 0 or more; None: there is none."""
        return max(0.0, self._heap[0].at - self._clock.monotonic()) if self._heap else None

    def knows(self, task_id: int) -> bool:
        """Tell whether a task is queued, or was taken last: no scan has to find it."""
        return task_id in self._task_ids or task_id in self._in_hand

    def take_due(self, limit: int, *, ahead: float = 0.0) -> list[Timed]:
        """Take tasks that are due within `ahead` seconds, in their order.

        What was taken before has been dealt with.
        """
        until = self._clock.monotonic() + ahead
        taken: list[Timed] = []
        while self._heap and self._heap[0].at <= until and len(taken) < limit:
            timed = heapq.heappop(self._heap)
            self._task_ids.discard(timed.due.task_id)
            taken.append(timed)
        self._in_hand = frozenset(timed.due.task_id for timed in taken)
        return taken


class GateQueue:
    """What has to be looked at because of gates: now, later, or after a lowered capacity."""

    def __init__(self, *, clock: Clock, horizon: dt.timedelta) -> None:
        self._clock = clock
        self._horizon = horizon.total_seconds()
        # Dicts for their order: oldest first.
        self.again: dict[Again, None] = {}
        self.locked: dict[Again, None] = {}
        """What other transactions hold locked, and is tried again."""
        self.lowered: dict[LoweredGate, None] = {}
        self._in_hand: frozenset[Again] = frozenset()
        self._later: dict[int, float] = {}
        self._later_in_hand: frozenset[int] = frozenset()
        self._heap: list[tuple[float, int, Later]] = []
        self._order = itertools.count()
        self.changed = asyncio.Event()
        """Set when there is something to look at again or later."""
        self.lowered_changed = asyncio.Event()

    def add(self, effects: Effects) -> None:
        for later in effects.later:
            self._add_later(later)
        for again in effects.again[: max(0, AGAIN_MAX - len(self.again))]:
            self.again[again] = None
        if effects.again or effects.later:
            self.changed.set()
        for gate in effects.lowered[: max(0, LOWERED_MAX - len(self.lowered))]:
            self.lowered[gate] = None
        if effects.lowered:
            self.lowered_changed.set()

    def knows(self, again: Again) -> bool:
        """Tell whether it is queued, locked, or was taken last: no scan has to find it."""
        return again in self.again or again in self.locked or again in self._in_hand

    def knows_instant(self, task_id: int) -> bool:
        """Tell the same of a task that waits for an instant."""
        return task_id in self._later or task_id in self._later_in_hand

    def take_again(self) -> dict[Again, None]:
        """Take what is to be looked at again, but for what is locked, which is tried anyway.

        What was taken before has been dealt with.
        """
        taken = {again: None for again in self.again if again not in self.locked}
        self.again = {}
        self._in_hand = frozenset(taken)
        return taken

    def take_due(self) -> list[str]:
        """Take the namespaces of all tasks whose instant has come; as `take_again` does."""
        now, names, task_ids = self._clock.monotonic(), dict[str, None](), set[int]()
        while self._heap and self._heap[0][0] <= now:
            at, _, later = heapq.heappop(self._heap)
            if self._later.get(later.task_id, at) == at:
                self._later.pop(later.task_id, None)
                names[later.key.namespace] = None
                task_ids.add(later.task_id)
        self._later_in_hand = frozenset(task_ids)
        return list(names)

    def delay(self, namespace: str, seconds: float = 0.0) -> None:
        """Have `take_due` return a namespace again after `seconds`."""
        at = self._clock.monotonic() + seconds
        self._push(at, Later(process_key(namespace, ""), 0, 0.0))

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next instant, 0 or more; None: there is none."""
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def _add_later(self, later: Later) -> None:
        if later.seconds > self._horizon or len(self._heap) >= LATER_MAX:
            return
        at = self._clock.monotonic() + later.seconds + _GATE_MARGIN_SECONDS
        known = self._later.get(later.task_id)
        if known is None or known > at:
            self._later[later.task_id] = at
            self._push(at, later)

    def _push(self, at: float, later: Later) -> None:
        heapq.heappush(self._heap, (at, next(self._order), later))


class KeyQueue:
    """Processes to be looked at: leaders of jobs that need upkeep, senders of messages."""

    def __init__(self) -> None:
        self._keys: dict[ProcessKey, None] = {}
        self.changed = asyncio.Event()
        """Set while the queue is not empty."""

    def add(self, *keys: ProcessKey) -> None:
        for key in keys:
            if len(self._keys) < KEYS_MAX:
                self._keys[key] = None
        if self._keys:
            self.changed.set()

    def take(self) -> tuple[ProcessKey, ...]:
        taken = tuple(self._keys)
        self._keys.clear()
        self.changed.clear()
        return taken
