"""What this replica has to look at because of gates: now, later, or after a lowered capacity.

``runtime/gates/wake_ups.py`` and ``lowered_gates.py`` work through it.
"""

import asyncio
import datetime as dt
import heapq
import itertools

from progressor.clock import Clock
from progressor.domain.processes.process import process_key
from progressor.storage.rows.effects import Again, Effects, Later, LoweredGate

# What is due by this clock must be due by PostgreSQL's. And looking at a locked process again at
# once would be a busy loop.
_MARGIN_SECONDS = 0.002

AGAIN_MAX = 10_000
"""Gates, queues and orders to be looked at again; the scan finds the rest."""

LATER_MAX = 100_000
"""Tasks to be looked at later; likewise."""

LOWERED_MAX = 10_000
"""Lowered gates; likewise."""


class GateQueue:
    """Gates and tasks with constraints, as effects report them."""

    def __init__(self, *, clock: Clock, horizon: dt.timedelta) -> None:
        self._clock = clock
        self._horizon = horizon.total_seconds()
        # Dicts for their order: oldest first.
        self.again: dict[Again, None] = {}
        self.lowered: dict[LoweredGate, None] = {}
        self._later: dict[int, float] = {}
        self._heap: list[tuple[float, int, Later]] = []
        self._order = itertools.count()
        self.changed = asyncio.Event()
        """Set when there is something to look at again or later."""
        self.lowered_changed = asyncio.Event()

    def add(self, effects: Effects) -> None:
        """Add what fits; returns at once."""
        for later in effects.later:
            self._note(later)
        for again in effects.again[: max(0, AGAIN_MAX - len(self.again))]:
            self.again[again] = None
        if effects.again or effects.later:
            self.changed.set()
        for gate in effects.lowered[: max(0, LOWERED_MAX - len(self.lowered))]:
            self.lowered[gate] = None
        if effects.lowered:
            self.lowered_changed.set()

    def take_again(self) -> dict[Again, None]:
        """Take everything that is to be looked at again."""
        taken, self.again = self.again, {}
        return taken

    def take_due(self) -> list[str]:
        """Take the namespaces of all tasks whose instant has come."""
        now, names = self._clock.monotonic(), dict[str, None]()
        while self._heap and self._heap[0][0] <= now:
            at, _, later = heapq.heappop(self._heap)
            if self._later.get(later.task_id, at) == at:
                self._later.pop(later.task_id, None)
                names[later.key.namespace] = None
        return list(names)

    def delay(self, namespace: str, seconds: float = 0.0) -> None:
        """Have `take_due` return a namespace again after so many seconds."""
        at = self._clock.monotonic() + seconds
        self._push(at, Later(process_key(namespace, ""), 0, 0.0))

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next instant, 0 or more; None: there is none."""
        if not self._heap:
            return None
        return max(0.0, self._heap[0][0] - self._clock.monotonic())

    def _note(self, later: Later) -> None:
        if later.seconds > self._horizon or len(self._heap) >= LATER_MAX:
            return
        at = self._clock.monotonic() + later.seconds + _MARGIN_SECONDS
        known = self._later.get(later.task_id)
        if known is not None and known <= at:
            return
        self._later[later.task_id] = at
        self._push(at, later)

    def _push(self, at: float, later: Later) -> None:
        heapq.heappush(self._heap, (at, next(self._order), later))
