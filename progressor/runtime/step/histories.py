"""The history that goes with a task: from the cache if it has it, else from storage."""

import collections
import dataclasses
import datetime as dt
from collections.abc import Sequence

from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.intent import Failed
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import Process, ProcessKey
from progressor.domain.processes.settlement import Finish, Settlement
from progressor.domain.processes.task import RunningTask
from progressor.storage.processes.histories import Histories
from progressor.storage.steps.settlements import Entry, Written

HISTORY_BYTES_MAX = 48 * 1024 * 1024
"""The largest history of one task; a message of 64 MiB holds it with the process and the task."""

_EVENT_OVERHEAD = 300
_SLACK = 16
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


@dataclasses.dataclass(slots=True, eq=False)
class _Snapshot:
    init_task_id: int
    events: list[Event]
    """Without gaps, up to the last event."""
    size: int

    def ends_with(self, process: Process) -> bool:
        return (
            self.init_task_id == process.init_task_id
            and self.events[-1].event_id == process.last_event_id
        )

    def append(self, new: tuple[Event, ...]) -> None:
        self.events.extend(new)
        self.size += _size_of(new)

    def trim(self, keep: int) -> None:
        """Drop the oldest events; only once they are as many as those kept, so that it is rare."""
        if len(self.events) >= 2 * keep + _SLACK:
            self.size -= _size_of(self.events[:-keep])
            del self.events[:-keep]


class HistoryCache:
    """The histories of recent processes, so that a busy one is not read at every step.

    An entry is valid only for the process as a claim returned it: with the same init task (not
    another process that took over the id) and the same last event. So nothing ever has to
    invalidate it. When `bytes_max` is reached, the least recently used go first; 0 keeps nothing.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._snapshots: collections.OrderedDict[ProcessKey, _Snapshot] = collections.OrderedDict()

    def recall(self, process: Process, *, after: int) -> tuple[Event, ...] | None:
        """Return the events of a process after an event id, oldest first; None if not known."""
        if process.last_event_id <= after:
            return ()
        snapshot = self._snapshots.get(process.key)
        if snapshot is None or not snapshot.ends_with(process):
            return None
        events = snapshot.events
        if events[0].event_id > after + 1:
            return None
        self._snapshots.move_to_end(process.key)
        return tuple(events[after + 1 - events[0].event_id :])

    def remember(self, process: Process, events: tuple[Event, ...]) -> None:
        """Remember events of a process: oldest first, without gaps, up to its last."""
        self._forget(process.key)
        size = _size_of(events)
        if not events or size > self._bytes_max:
            return
        assert events[-1].event_id == process.last_event_id, "a snapshot ends with the last event"
        self._snapshots[process.key] = _Snapshot(process.init_task_id, list(events), size)
        self._size += size
        self._make_room()

    def extend(
        self, before: Process, after: Process, new: tuple[Event, ...], *, keep: int | None
    ) -> None:
        """Carry a snapshot over a settlement that recorded `new` events.

        `keep`: how many events are going to be asked for, the last ones; None: all of them.
        """
        if not new or keep == 0 or after.last_event_id != new[-1].event_id:
            # Where the answer was lost and found again, others may have gone on meanwhile.
            return
        snapshot = self._snapshots.get(before.key)
        if snapshot is not None and snapshot.ends_with(before):
            self._size -= snapshot.size
            snapshot.append(new)
            if keep is not None:
                snapshot.trim(keep)
            self._size += snapshot.size
            self._snapshots.move_to_end(before.key)
            self._make_room()
        elif not before.last_event_id:
            self.remember(after, new)

    def _make_room(self) -> None:
        while self._size > self._bytes_max:
            _, oldest = self._snapshots.popitem(last=False)
            self._size -= oldest.size

    def _forget(self, key: ProcessKey) -> None:
        snapshot = self._snapshots.pop(key, None)
        if snapshot is not None:
            self._size -= snapshot.size


@dataclasses.dataclass(frozen=True, slots=True)
class StepHistories:
    stored: Histories
    cache: HistoryCache

    async def with_memos(self, task: RunningTask) -> RunningTask | None:
        """Return a task with the memos of its earlier attempts; None if its lease is lost."""
        memos = await self.stored.memos(task.key, task.task_id, task.token)
        return None if memos is None else dataclasses.replace(task, memos=memos)

    async def read(self, task: RunningTask, namespace: Namespace) -> tuple[Event, ...] | Failed:
        """Return the events that go with a task, or why the step fails without them."""
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
        """Add the events of a settlement, if the next step is likely to need them."""
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
    """Return how many of the last events to keep; None: all of them."""
    asked = task.history_range
    if asked is not None and asked.direction is Direction.BACKWARD and asked.after == 0:
        return asked.limit
    return namespace.history_kept


def _recorded(
    settlement: Settlement, before: Process, task_id: int, settled_at: dt.datetime
) -> tuple[Event, ...]:
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


def _size_of(events: Sequence[Event]) -> int:
    return sum([len(event.payload) for event in events]) + _EVENT_OVERHEAD * len(events)
