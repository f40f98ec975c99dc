"""The due queue: tasks that become due soon, as far as this replica knows, in that order.

Due times are PostgreSQL's. A replica's own clock may be an hour off, so a due time is kept on its
monotonic clock, as the distance from an instant that PostgreSQL has just returned.
"""

import asyncio
import datetime as dt
import heapq
import itertools

from progressor.clock import Clock
from progressor.storage.processes.settlements import Due

# A result takes a moment to arrive, so a task that is due here is due at PostgreSQL; the margin
# covers clocks that run at different speeds.
_MARGIN = 0.0005


class DueQueue:
    """At most `size_max` tasks within `horizon`; the rest is left to the scan."""

    def __init__(self, *, clock: Clock, horizon: dt.timedelta, size_max: int) -> None:
        self._clock = clock
        self._horizon = horizon
        self._size_max = size_max
        self._heap: list[tuple[float, int, Due]] = []
        self._task_ids: set[int] = set()
        self._order = itertools.count()
        self.changed = asyncio.Event()
        """Set when the first task to become due is another one."""

    def add(self, due: Due, *, as_of: dt.datetime) -> None:
        """Add a task that was read at PostgreSQL's instant `as_of`."""
        ahead = due.due_at - as_of
        if ahead > self._horizon or len(self._heap) >= self._size_max:
            return
        if due.task_id in self._task_ids:
            return
        self._task_ids.add(due.task_id)
        at = self._clock.monotonic() + max(0.0, ahead.total_seconds()) + _MARGIN
        heapq.heappush(self._heap, (at, next(self._order), due))
        if self._heap[0][2] is due:
            self.changed.set()

    def wait_seconds(self) -> float | None:
        """Return the seconds until the first task is due, 0 or more; None: there is none."""
        if not self._heap:
            return None
        return max(0.0, self._heap[0][0] - self._clock.monotonic())

    def take_due(self, limit: int) -> list[Due]:
        """Take at most `limit` tasks that are due, the longest overdue first."""
        now = self._clock.monotonic()
        taken: list[Due] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < limit:
            _, _, due = heapq.heappop(self._heap)
            self._task_ids.discard(due.task_id)
            taken.append(due)
        return taken
