"""A lane of group commit: what waits for one kind of write, in the order in which it came."""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from progressor import errors
from progressor.domain.process import ProcessKey
from progressor.storage.backoff import Backoff

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of one batch with more than one item: PostgreSQL takes a gigabyte in one message."""

_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_WRITES_REMEMBERED = 8


@dataclasses.dataclass(slots=True)
class Entry(Generic[Item, Result]):
    """An item in line; `size` is in bytes.

    ``again``: it was sent before; ``done``: its result is known.
    """

    item: Item
    key: ProcessKey
    rival: Hashable | None
    future: asyncio.Future[Result]
    size: int = 0
    again: bool = False
    done: bool = False


@dataclasses.dataclass(slots=True)
class Flight(Generic[Item, Result]):
    """A batch under way.

    ``repeats`` says that some of it was sent before, ``error`` why it was not written.
    """

    batch: list[Entry[Item, Result]]
    started_at: float
    repeats: bool
    error: errors.StorageUnavailableError | None = None
    task: asyncio.Task[None] = dataclasses.field(init=False)


class Lane(Generic[Item, Result]):
    """Entries in the order in which they came."""

    def __init__(self, batch_max: int, jitter: Callable[[], float]) -> None:
        """Start empty; `jitter` spreads the pauses, from -1 to 1."""
        self.limit = self._batch_max = batch_max
        """Items of the next batch, at most."""
        self.bytes_waiting = 0
        self.entries: collections.deque[Entry[Item, Result]] = collections.deque()
        self.filled = asyncio.Event()
        self.last_started_at = 0.0
        self.last_landed_at = 0.0
        self.write_seconds = 0.0
        """How long a write takes lately."""
        self.backoff = Backoff(first=_BACKOFF_FIRST, longest=_BACKOFF_MAX, jitter=jitter)
        self.held_back = False
        """Whether entries wait only because a rival went before them."""
        self._wanted = 1
        self.flights: collections.deque[Flight[Item, Result]] = collections.deque()
        """Batches under way, the oldest first: one that PostgreSQL writes, and one behind it."""

    @property
    def repeats(self) -> bool:
        """Whether what was sent before is being sent again, or is about to be."""
        flies = bool(self.flights) and self.flights[0].repeats
        return flies or (bool(self.entries) and self.entries[0].again)

    def add(self, entry: Entry[Item, Result]) -> None:
        """Put an entry at the end of the line."""
        self.entries.append(entry)
        self.bytes_waiting += entry.size
        if len(self.entries) >= self._wanted:
            self.filled.set()

    async def wait(self, seconds: float | None, wanted: int = 1) -> None:
        """Return when so many are in line, after `seconds` at the latest."""
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
            if self.entries:
                self.filled.set()

    def take(self, limit: int) -> list[Entry[Item, Result]]:
        """Take entries from the front, no two rivals among them, and no more than BATCH_BYTES_MAX.

        The others keep their order; nobody passes an entry of the same process.
        """
        batch: list[Entry[Item, Result]] = []
        passed: list[Entry[Item, Result]] = []
        rivals: set[Hashable] = set()
        # Nobody may pass an item of a process that is under way: it may have to be written again.
        waiting = {entry.key for flight in self.flights for entry in flight.batch}
        # A crowd of rivals must not make every batch walk the whole line.
        room = BATCH_BYTES_MAX
        for _ in range(min(len(self.entries), 4 * limit)):
            if batch and self.entries[0].size > room:
                break
            entry = self.entries.popleft()
            if entry.rival in rivals or entry.key in waiting:
                passed.append(entry)
                waiting.add(entry.key)
                continue
            if entry.rival is not None:
                rivals.add(entry.rival)
            batch.append(entry)
            room -= entry.size
            if len(batch) == limit:
                break
        self.bytes_waiting -= BATCH_BYTES_MAX - room
        self.entries.extendleft(reversed(passed))
        self.held_back = bool(passed)
        self.last_started_at = asyncio.get_running_loop().time()
        return batch

    def landed(self, flight: Flight[Item, Result]) -> None:
        """Take note that a batch was written."""
        now = asyncio.get_running_loop().time()
        seconds = now - max(flight.started_at, self.last_landed_at)
        self.last_landed_at = now
        known = self.write_seconds or seconds
        self.write_seconds = known + (seconds - known) / _WRITES_REMEMBERED
        self.limit = min(2 * self.limit, self._batch_max)
        self.backoff.reset()

    def put_back(self, batch: list[Entry[Item, Result]]) -> None:
        """Return to the front what is not written yet, for a lane that insists.

        Whether somebody still waits for the result makes no difference.
        """
        for entry in reversed(batch):
            if not entry.done:
                self.entries.appendleft(entry)
                self.bytes_waiting += entry.size

    def clear(self) -> list[Entry[Item, Result]]:
        """Take all that waits out of the line, and return it."""
        cleared = list(self.entries)
        self.entries.clear()
        self.bytes_waiting = 0
        return cleared
