"""A lane of group commit: what waits for one kind of write, in the order in which it came."""

import asyncio
import collections
import dataclasses
import itertools
from collections.abc import Callable, Container, Hashable
from typing import Generic, TypeVar

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.backoff import Backoff

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one batch with more than one item.

libpq keeps room for the largest that a connection has sent until the connection is closed; with 32
MiB, two batches under way left 128 MiB behind.
"""

_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_WRITES_REMEMBERED = 8

ASIDE_SECONDS = 0.1
"""How often to ask whether a process that another transaction holds locked has been let go."""


@dataclasses.dataclass(slots=True)
class Entry(Generic[Item, Result]):
    """An item in line; `size` is in bytes.

    ``again``: it was sent before; ``done``: its result is known; ``aside_since`` is when it was put
    aside, on the clock of the event loop; ``since``, when it was put in line, on the clock of who
    did so. ``blocked_by`` is what it waits for where its process is not locked itself.
    """

    item: Item
    key: ProcessKey
    rival: Hashable | None
    future: asyncio.Future[Result]
    size: int = 0
    again: bool = False
    done: bool = False
    aside_since: float = 0.0
    since: float = 0.0
    blocked_by: Hashable | None = None


@dataclasses.dataclass(slots=True)
class Flight(Generic[Item, Result]):
    """A batch under way.

    ``repeats`` says that some of it was sent before, ``error`` why it was not written, ``locked``
    what was left out because another transaction has locked its process.
    """

    batch: list[Entry[Item, Result]]
    started_at: float
    repeats: bool
    error: errors.StorageUnavailableError | None = None
    locked: list[Entry[Item, Result]] = dataclasses.field(default_factory=list)
    task: asyncio.Task[None] = dataclasses.field(init=False)


class Lane(Generic[Item, Result]):
    """Entries in the order in which they came.

    Those whose process another transaction holds locked wait `aside`, and with them all that comes
    for the same process, so that no other waits for it, and each process keeps its order. So
    do those that wait for a row whose holder is unknown, such as a gate: they are *blocked*,
    and whether they still are is found out by writing the first of them.
    """

    def __init__(self, batch_max: int, jitter: Callable[[], float]) -> None:
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
        self.aside: list[Entry[Item, Result]] = []
        """What waits for a lock, in order."""
        self.tries_blocked = False
        """Whether a task retries the blocked ones."""
        self.tried: Entry[Item, Result] | None = None
        """The blocked one that is being written, beside the line."""
        self._is_time_to_ask = False
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def repeats(self) -> bool:
        """Whether what was sent before is being sent again, or is about to be."""
        flies = bool(self.flights) and self.flights[0].repeats
        return flies or (bool(self.entries) and self.entries[0].again)

    @property
    def asks(self) -> bool:
        """Whether it is time to ask which of those put aside may be written."""
        return bool(self.aside) and self._is_time_to_ask

    @property
    def has_work(self) -> bool:
        """Whether there is something to do at this moment."""
        return bool(self.entries) or self.asks

    @property
    def waiting_count(self) -> int:
        """Return how many wait to be written."""
        return len(self.entries) + len(self.aside)

    def is_waiting(self, key: ProcessKey) -> bool:
        """Tell whether anything about a process is here, or under way."""
        flying = (entry for flight in self.flights for entry in flight.batch)
        everything = itertools.chain(flying, self.aside, self.entries)
        return any(entry.key == key for entry in everything)

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
            if self.has_work:
                self.filled.set()

    def take(self, limit: int) -> list[Entry[Item, Result]]:
        """Take entries from the front, no two rivals among them, and no more than BATCH_BYTES_MAX.

        The others keep their order; no item overtakes another of the same process.
        """
        batch: list[Entry[Item, Result]] = []
        passed: list[Entry[Item, Result]] = []
        rivals: set[Hashable] = set()
        # No item may overtake an in-flight item of its process: that may have to be retried.
        waiting = {entry.key for flight in self.flights for entry in flight.batch}
        locked = {entry.key for entry in self.aside}
        # A crowd of rivals must not make every batch walk the whole line.
        room = BATCH_BYTES_MAX
        for _ in range(min(len(self.entries), 4 * limit)):
            if batch and self.entries[0].size > room:
                break
            entry = self.entries.popleft()
            if entry.key in locked:
                self._put_aside(entry)
                continue
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

        It makes no difference whether a caller still waits for the result.
        """
        undone = [entry for entry in batch if not entry.done]
        self._put_first(undone)
        self.bytes_waiting += sum(entry.size for entry in undone)

    def set_aside(self, locked: list[Entry[Item, Result]]) -> None:
        """Keep what PostgreSQL did not write because others hold its processes locked."""
        for entry in locked:
            self._put_aside(entry)
            self.bytes_waiting += entry.size
        if locked:
            self._ask_later()

    def asked(self, locked: Container[ProcessKey]) -> None:
        """Take note of which processes are still locked, and return the others to the front."""
        blocked = {entry.key for entry in self.aside if entry.blocked_by is not None}
        self._put_first([it for it in self.aside if it.key not in locked and it.key not in blocked])
        self._keep_aside([it for it in self.aside if it.key in locked or it.key in blocked])

    @property
    def has_blocked(self) -> bool:
        """Whether any items wait for a row whose lock cannot be checked."""
        return any(entry.blocked_by is not None for entry in self.aside)

    def first_blocked(self) -> list[Entry[Item, Result]]:
        """Return the first of those that wait for the same, for each such row."""
        first: dict[Hashable, Entry[Item, Result]] = {}
        for entry in self.aside:
            if entry.blocked_by is not None:
                first.setdefault(entry.blocked_by, entry)
        return list(first.values())

    def let_go(self, written: Entry[Item, Result]) -> None:
        """Take out an entry that was blocked, and return to the front what waited with it."""
        if not any(entry is written for entry in self.aside):
            return
        self.bytes_waiting -= written.size
        aside = [entry for entry in self.aside if entry is not written]
        freed = {written.key}
        for entry in aside:
            if entry.blocked_by == written.blocked_by:
                entry.blocked_by = None
                freed.add(entry.key)
        freed -= {entry.key for entry in aside if entry.blocked_by is not None}
        self._put_first([entry for entry in aside if entry.key in freed])
        self._keep_aside([entry for entry in aside if entry.key not in freed])
        self.filled.set()

    def tired(self, seconds: float) -> list[Entry[Item, Result]]:
        """Take out, and return, what has been aside for longer, and is not being tried."""
        until = asyncio.get_running_loop().time() - seconds
        tired = [it for it in self.aside if it.aside_since < until and it is not self.tried]
        self._keep_aside([it for it in self.aside if it.aside_since >= until or it is self.tried])
        self.bytes_waiting -= sum(entry.size for entry in tired)
        return tired

    def _put_first(self, entries: list[Entry[Item, Result]]) -> None:
        """Return entries to the front, but those before them all that were sent before.

        So the first in line tells whether any is: see `repeats`. Of one process these are the older
        ones anyway.
        """
        again: list[Entry[Item, Result]] = []
        while self.entries and self.entries[0].again:
            again.append(self.entries.popleft())
        first = sorted([*entries, *again], key=lambda entry: not entry.again)
        self.entries.extendleft(reversed(first))

    def _put_aside(self, entry: Entry[Item, Result]) -> None:
        entry.aside_since = entry.aside_since or asyncio.get_running_loop().time()
        self.aside.append(entry)

    def _keep_aside(self, entries: list[Entry[Item, Result]]) -> None:
        self.aside = entries
        if entries:
            self._ask_later()

    def _ask_later(self) -> None:
        self._is_time_to_ask = False
        if self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(ASIDE_SECONDS, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._is_time_to_ask = True
        self.filled.set()

    def clear(self) -> list[Entry[Item, Result]]:
        """Take all that waits out of the line, and return it."""
        cleared = [*self.aside, *self.entries]
        self.aside = []
        self.entries.clear()
        self.bytes_waiting = 0
        return cleared
