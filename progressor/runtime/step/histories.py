"""The history that goes with a task: from the cache if it has it, else from storage."""

import dataclasses
import datetime as dt
from typing import Protocol

from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.intent import Failed
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import Process, ProcessKey
from progressor.domain.processes.settlement import Finish, Settlement
from progressor.domain.processes.task import RunningTask
from progressor.domain.views.process import HistoryPage
from progressor.runtime.step.history_cache import HistoryCache
from progressor.storage.processes.settlements import Entry, Written

HISTORY_BYTES_MAX = 48 * 1024 * 1024
"""The largest history of one task; a message of 64 MiB holds it with the process and the task."""

_RESOURCE_EXHAUSTED = 8
_INTERNAL = 13
_INCOMPLETE = Failed(
    code=_INTERNAL,
    reason="HISTORY_INCOMPLETE",
    message="the history ends before the process's last event",
    retryable=True,
)
_TOO_LARGE = Failed(
    code=_RESOURCE_EXHAUSTED,
    reason="HISTORY_TOO_LARGE",
    message=f"the history has more than {HISTORY_BYTES_MAX} bytes; "
    "let the namespace send the last events, or none",
    retryable=False,
)


class Histories(Protocol):
    """What a step needs of storage's histories."""

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, last_event_id: int, bytes_max: int
    ) -> HistoryPage:
        """Read a range of events."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepHistories:
    """Reads histories for steps, and keeps the cache up to date with their settlements."""

    stored: Histories
    cache: HistoryCache

    async def read(self, task: RunningTask, namespace: Namespace) -> tuple[Event, ...] | Failed:
        """Return the events that a task's processor wants, or why the step fails without them."""
        process = task.process
        last = process.last_event_id
        wanted = namespace.history_for(task.history_range, last_event_id=last)
        if last == 0 or wanted.limit == 0 or wanted.after > last:
            return ()
        known = self._recall(process, wanted)
        if known is not None:
            return known
        page = await self.stored.read(
            process.key, wanted, last_event_id=last, bytes_max=HISTORY_BYTES_MAX
        )
        if page.next_after is not None:
            return _TOO_LARGE
        if len(page.events) < _count_of(wanted, last):
            # The process was removed after the claim, and the lease with it: the settlement will
            # be rejected. The processor must not see a state without its history.
            return _INCOMPLETE
        if wanted.direction is Direction.FORWARD and wanted.limit is None:
            self.cache.remember(process, page.events)
        elif wanted.direction is Direction.BACKWARD and wanted.after == 0:
            self.cache.remember(process, page.events[::-1])
        return page.events

    def settled(
        self, entry: Entry, task: RunningTask, written: Written, namespace: Namespace
    ) -> None:
        """Add the events of a settlement, if the next step will want events as this one did."""
        keep = _kept(task, namespace)
        if written.process is None or keep == 0:
            return
        new = _recorded(entry.settlement, task.process, entry.task_id, written.settled_at)
        self.cache.extend(task.process, written.process, new, keep=keep)

    def _recall(self, process: Process, wanted: HistoryRange) -> tuple[Event, ...] | None:
        if wanted.direction is Direction.FORWARD:
            known = self.cache.recall(process, after=wanted.after)
            return known if known is None else known[: wanted.limit]
        before = wanted.after or process.last_event_id + 1
        count = before - 1 if wanted.limit is None else min(wanted.limit, before - 1)
        known = self.cache.recall(process, after=before - 1 - count)
        return known if known is None else known[:count][::-1]


def _count_of(wanted: HistoryRange, last: int) -> int:
    """Return how many events a range has in a history that ends with `last`."""
    if wanted.direction is Direction.FORWARD:
        found = last - wanted.after
    else:
        found = wanted.after - 1 if wanted.after else last
    return found if wanted.limit is None else min(found, wanted.limit)


def _kept(task: RunningTask, namespace: Namespace) -> int | None:
    """Return how many of the last events are worth remembering; None: all of them."""
    asked = task.history_range
    if asked is not None and asked.direction is Direction.BACKWARD and asked.after == 0:
        return asked.limit
    return namespace.history_kept


def _recorded(
    settlement: Settlement, before: Process, task_id: int, settled_at: dt.datetime
) -> tuple[Event, ...]:
    """Return the events of a settlement as they stand in the history now."""
    if not isinstance(settlement, Finish):
        return ()
    return tuple(
        Event(
            event_id=event_id,
            occurred_at=settled_at,
            payload=event.payload,
            format_version=event.format_version,
            metadata=event.metadata,
            task_id=task_id,
        )
        for event_id, event in enumerate(settlement.intent.events, start=before.last_event_id + 1)
    )
