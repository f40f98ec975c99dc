"""Snapshots: the histories of recent processes, so that a busy one is not read at every step.

A snapshot is good only for the process as a claim returned it: same init task (not another process
that took over the id), same last event. So nothing ever has to invalidate it.
"""

import collections
import dataclasses

from progressor.domain.event import Event
from progressor.domain.process import Process, ProcessKey

_EVENT_OVERHEAD = 300


@dataclasses.dataclass(frozen=True, slots=True)
class _Snapshot:
    init_task_id: int
    events: tuple[Event, ...]
    """Without gaps, up to the last event."""
    size: int

    def ends_with(self, process: Process) -> bool:
        return (
            self.init_task_id == process.init_task_id
            and self.events[-1].event_id == process.last_event_id
        )


class Snapshots:
    """The least recently used go first when `bytes_max` is reached; 0 remembers nothing."""

    def __init__(self, *, bytes_max: int) -> None:
        """Start empty."""
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
        return events[after + 1 - events[0].event_id :]

    def remember(self, process: Process, events: tuple[Event, ...]) -> None:
        """Remember events of a process: oldest first, without gaps, up to its last."""
        self._forget(process.key)
        size = sum(len(event.payload) + _EVENT_OVERHEAD for event in events)
        if not events or size > self._bytes_max:
            return
        assert events[-1].event_id == process.last_event_id, "a snapshot ends with the last event"
        self._snapshots[process.key] = _Snapshot(process.init_task_id, events, size)
        self._size += size
        while self._size > self._bytes_max:
            _, oldest = self._snapshots.popitem(last=False)
            self._size -= oldest.size

    def extend(self, before: Process, after: Process, new: tuple[Event, ...]) -> None:
        """Carry a snapshot over a settlement that recorded `new` events."""
        if not new or after.last_event_id != new[-1].event_id:
            # Where the answer was lost and found again, others may have gone on meanwhile.
            return
        known = self.recall(before, after=0) if before.last_event_id else ()
        if known is not None:
            self.remember(after, (*known, *new))
            return
        tail = self._snapshots.get(before.key)
        if tail is not None and tail.ends_with(before):
            self.remember(after, (*tail.events, *new))

    def _forget(self, key: ProcessKey) -> None:
        snapshot = self._snapshots.pop(key, None)
        if snapshot is not None:
            self._size -= snapshot.size
