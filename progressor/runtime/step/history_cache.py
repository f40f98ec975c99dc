"""Snapshots: the histories of recent processes, so that a busy one is not read at every step.

A snapshot is good only for the process as a claim returned it: same init task (not another process
that took over the id), same last event. So nothing ever has to invalidate it.
"""

import collections
import dataclasses
from collections.abc import Sequence

from progressor.domain.processes.event import Event
from progressor.domain.processes.process import Process, ProcessKey

_EVENT_OVERHEAD = 300
_SLACK = 16


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
        """Drop the oldest where at least as many are to go as are to stay: rarely, then."""
        if len(self.events) >= 2 * keep + _SLACK:
            self.size -= _size_of(self.events[:-keep])
            del self.events[:-keep]


class HistoryCache:
    """The least recently used go first when `bytes_max` is reached; 0 remembers nothing.

    What a step adds costs what it adds, however long the history is.
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

        Args:
            before: The process as the step found it.
            after: The process as the settlement left it.
            new: The events between the two.
            keep: How many events are going to be asked for, the last ones; None: all of them.
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


def _size_of(events: Sequence[Event]) -> int:
    return sum([len(event.payload) for event in events]) + _EVENT_OVERHEAD * len(events)
