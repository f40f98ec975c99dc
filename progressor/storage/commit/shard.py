"""A shard of a group commit: the queue of one kind of write, in which namespaces take turns."""

import asyncio
import collections
import dataclasses
import itertools
from collections.abc import Callable, Container, Hashable
from typing import Generic, TypeVar

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.storage.commit.fair_queue import FairQueue
from progressor.storage.postgres.backoff import Backoff

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one batch with more than one item.

libpq keeps a buffer for the largest message that a connection has sent until the connection is
closed; with 32 MiB, two batches in flight left 128 MiB behind.
"""

_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_WRITES_REMEMBERED = 8

PARKED_CHECK_SECONDS = 0.1
"""Interval between checks whether a locked process has been released."""


@dataclasses.dataclass(slots=True)
class Entry(Generic[Item, Result]):
    """A queued item; `size` is in bytes.

    ``again``: it was sent before; ``done``: its result is known. ``parked_at`` is on the event
    loop's clock, ``since`` on the clock of its submitter. ``blocked_by`` is the row that it
    waits for where its process is not locked itself.
    """

    item: Item
    key: ProcessKey
    conflict_key: Hashable | None
    future: asyncio.Future[Result]
    size: int = 0
    again: bool = False
    done: bool = False
    parked_at: float = 0.0
    since: float = 0.0
    blocked_by: Hashable | None = None


@dataclasses.dataclass(slots=True)
class InFlightBatch(Generic[Item, Result]):
    """A batch that has been sent.

    ``repeats``: some of it was sent before. ``error`` is why it was not written, ``locked`` what
    was left out because another transaction has locked its process. ``task`` is None where the
    shard itself writes it.
    """

    entries: list[Entry[Item, Result]]
    started_at: float
    repeats: bool
    error: errors.StorageUnavailableError | None = None
    locked: list[Entry[Item, Result]] = dataclasses.field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Shard(Generic[Item, Result]):
    """Entries of each namespace in the order of submission; see `FairQueue`.

    An entry whose process another transaction has locked is *parked*, with all later entries of
    that process, so that no other entry waits for it and each process keeps its order. An entry
    that waits for a row whose lock cannot be checked, such as a gate, is parked as *blocked*:
    writing the first such entry shows whether the row is still locked.
    """

    def __init__(self, batch_max: int, jitter: Callable[[], float]) -> None:
        self.limit = self._batch_max = batch_max
        """Most items of the next batch."""
        self.bytes_waiting = 0
        self.entries = FairQueue[Entry[Item, Result]]()
        self.filled = asyncio.Event()
        self.last_started_at = 0.0
        self.last_written_at = 0.0
        self.write_seconds = 0.0
        """Moving average of the duration of a write."""
        self.backoff = Backoff(first=_BACKOFF_FIRST, longest=_BACKOFF_MAX, jitter=jitter)
        self.held_back = False
        """Whether entries wait only because a conflicting one was sent before them."""
        self._wanted = 1
        self.in_flight: collections.deque[InFlightBatch[Item, Result]] = collections.deque()
        """At most two batches, the older first: PostgreSQL writes one, the other waits behind."""
        self.parked: list[Entry[Item, Result]] = []
        """Entries that wait for a lock, in order."""
        self.retries_blocked = False
        """Whether a task retries the blocked entries."""
        self.retried: Entry[Item, Result] | None = None
        """The blocked entry that is being retried."""
        self._check_is_due = False
        self._check_timer: asyncio.TimerHandle | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [batch.task for batch in self.in_flight if batch.task is not None]

    @property
    def repeats(self) -> bool:
        """Whether something that was sent before is in flight again, or next in the queue."""
        in_flight = bool(self.in_flight) and self.in_flight[0].repeats
        return in_flight or (bool(self.entries) and self.entries.head.again)

    @property
    def check_is_due(self) -> bool:
        return bool(self.parked) and self._check_is_due

    @property
    def has_work(self) -> bool:
        return bool(self.entries) or self.check_is_due

    @property
    def waiting_count(self) -> int:
        return len(self.entries) + len(self.parked)

    def is_waiting(self, key: ProcessKey) -> bool:
        in_flight = (entry for batch in self.in_flight for entry in batch.entries)
        everything = itertools.chain(in_flight, self.parked, self.entries)
        return any(entry.key == key for entry in everything)

    def add(self, entry: Entry[Item, Result]) -> None:
        self.entries.append(entry)
        self.bytes_waiting += entry.size
        if len(self.entries) >= self._wanted:
            self.filled.set()

    async def wait(self, seconds: float | None, wanted: int = 1) -> None:
        if len(self.entries) >= wanted:
            return
        self._wanted = wanted
        self.filled.clear()
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self.filled.set)
        try:
            await self.filled.wait()
        finally:
            if timer is not None:
                timer.cancel()
            self._wanted = 1
            if self.has_work:
                self.filled.set()

    def take(self, limit: int) -> list[Entry[Item, Result]]:
        """Take entries from the front, without conflicts and up to BATCH_BYTES_MAX.

        The rest keeps its order; no entry overtakes another of the same process.
        """
        batch: list[Entry[Item, Result]] = []
        passed: list[Entry[Item, Result]] = []
        conflict_keys: set[Hashable] = set()
        # No entry may overtake one of its process that is in flight: that may have to be retried.
        waiting = {entry.key for sent in self.in_flight for entry in sent.entries}
        locked = {entry.key for entry in self.parked}
        room = BATCH_BYTES_MAX
        # Bounded, so that many conflicting entries do not make every batch walk the whole queue.
        for _ in range(min(len(self.entries), 4 * limit)):
            if batch and self.entries.head.size > room:
                break
            entry = self.entries.pop()
            if entry.key in locked:
                self._add_parked(entry)
                continue
            if entry.conflict_key in conflict_keys or entry.key in waiting:
                passed.append(entry)
                waiting.add(entry.key)
                continue
            if entry.conflict_key is not None:
                conflict_keys.add(entry.conflict_key)
            batch.append(entry)
            room -= entry.size
            if len(batch) == limit:
                break
        self.bytes_waiting -= BATCH_BYTES_MAX - room
        self.entries.put_first(passed)
        self.held_back = bool(passed)
        self.last_started_at = asyncio.get_running_loop().time()
        return batch

    def note_written(self, batch: InFlightBatch[Item, Result]) -> None:
        now = asyncio.get_running_loop().time()
        seconds = now - max(batch.started_at, self.last_written_at)
        self.last_written_at = now
        known = self.write_seconds or seconds
        self.write_seconds = known + (seconds - known) / _WRITES_REMEMBERED
        self.limit = min(2 * self.limit, self._batch_max)
        self.backoff.reset()

    def put_back(self, batch: list[Entry[Item, Result]]) -> None:
        """Return the unwritten entries of a batch to the front, whether or not a caller waits."""
        undone = [entry for entry in batch if not entry.done]
        self._put_first(undone)
        self.bytes_waiting += sum(entry.size for entry in undone)

    def park(self, locked: list[Entry[Item, Result]]) -> None:
        """Keep the entries of a batch that were left out because their process is locked."""
        for entry in locked:
            self._add_parked(entry)
            self.bytes_waiting += entry.size
        if locked:
            self._check_later()

    def unpark(self, locked: Container[ProcessKey]) -> None:
        """Return parked entries to the front, except those of `locked` or blocked processes."""
        blocked = {entry.key for entry in self.parked if entry.blocked_by is not None}
        kept, free = _partition(self.parked, lambda it: it.key in locked or it.key in blocked)
        self._put_first(free)
        self._keep_parked(kept)

    @property
    def has_blocked(self) -> bool:
        """Whether any entry waits for a row whose lock cannot be checked."""
        return any(entry.blocked_by is not None for entry in self.parked)

    def first_blocked(self) -> list[Entry[Item, Result]]:
        """Return the first entry of those that wait for the same row, for each such row."""
        first: dict[Hashable, Entry[Item, Result]] = {}
        for entry in self.parked:
            if entry.blocked_by is not None:
                first.setdefault(entry.blocked_by, entry)
        return list(first.values())

    def release(self, written: Entry[Item, Result]) -> None:
        """Remove a blocked entry, and return to the front those that waited for the same row."""
        if not any(entry is written for entry in self.parked):
            return
        self.bytes_waiting -= written.size
        parked = [entry for entry in self.parked if entry is not written]
        freed = {written.key}
        for entry in parked:
            if entry.blocked_by == written.blocked_by:
                entry.blocked_by = None
                freed.add(entry.key)
        freed -= {entry.key for entry in parked if entry.blocked_by is not None}
        free, kept = _partition(parked, lambda it: it.key in freed)
        self._put_first(free)
        self._keep_parked(kept)
        self.filled.set()

    def take_expired(self, seconds: float) -> list[Entry[Item, Result]]:
        """Remove and return the entries parked for longer, except the one being retried."""
        until = asyncio.get_running_loop().time() - seconds
        kept, expired = _partition(
            self.parked, lambda it: it.parked_at >= until or it is self.retried
        )
        self._keep_parked(kept)
        self.bytes_waiting -= sum(entry.size for entry in expired)
        return expired

    def take_all(self) -> list[Entry[Item, Result]]:
        taken = [*self.parked, *self.entries]
        self.parked = []
        self.entries.clear()
        self.bytes_waiting = 0
        return taken

    def _put_first(self, entries: list[Entry[Item, Result]]) -> None:
        """Return entries to the front, behind any that were sent before.

        So the first entry shows whether any was sent before: see `repeats`. Within a process the
        entries sent before are the older ones.
        """
        again: list[Entry[Item, Result]] = []
        while self.entries and self.entries.head.again:
            again.append(self.entries.pop())
        first = sorted([*entries, *again], key=lambda entry: not entry.again)
        self.entries.put_first(first)

    def _add_parked(self, entry: Entry[Item, Result]) -> None:
        entry.parked_at = entry.parked_at or asyncio.get_running_loop().time()
        self.parked.append(entry)

    def _keep_parked(self, entries: list[Entry[Item, Result]]) -> None:
        self.parked = entries
        if entries:
            self._check_later()

    def _check_later(self) -> None:
        self._check_is_due = False
        if self._check_timer is None:
            loop = asyncio.get_running_loop()
            self._check_timer = loop.call_later(PARKED_CHECK_SECONDS, self._note_check_due)

    def _note_check_due(self) -> None:
        self._check_timer = None
        self._check_is_due = True
        self.filled.set()


def _partition(
    entries: list[Entry[Item, Result]], is_first: Callable[[Entry[Item, Result]], bool]
) -> tuple[list[Entry[Item, Result]], list[Entry[Item, Result]]]:
    first: list[Entry[Item, Result]] = []
    second: list[Entry[Item, Result]] = []
    for entry in entries:
        (first if is_first(entry) else second).append(entry)
    return first, second
