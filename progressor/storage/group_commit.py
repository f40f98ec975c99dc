"""Group commit: what is waiting at the moment becomes one statement, one round trip, one commit.

What dominates the cost of a durable write is not the rows but the statements and the commits. So a
write waits in a *lane*; while one batch of the lane is in flight, the next one fills, and follows
on the same connection as soon as it is full. At low load a batch is one item and nobody waits;
under load the batches grow by themselves.

What holds:

- Items of one process share a lane and are written in the order in which they came. Whether two of
  them may be in one batch, the kind of write says; see `rival`. No two batches in flight have a
  process in common, so that it makes no difference which of them has to be written again.
- Every item gets its own result. An item that PostgreSQL refuses fails alone: a batch that fails as
  a whole is split until the culprit stands alone.
- A batch whose fate is unknown (the connection broke) is given up or insisted on, as the kind of
  write demands; see `Insistence`.
"""

import asyncio
import collections
import dataclasses
import datetime as dt
import enum
import itertools
import logging
import struct
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from progressor import errors
from progressor.domain.process import ProcessKey
from progressor.storage.pools import Connection, Pool, connection_of, translated

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)

CONFLICT_ATTEMPTS_MAX = 5
GATHER_ENOUGH = 64
"""Items by which a batch is full enough: twice as many would cost a twentieth less for each."""

GATHER_WRITES = 6
"""By how many times the duration of a write a batch may be put off: longer would not pay."""

GATHER_SPLIT = 8
"""Items from which on it is worth writing half of the steps in hand at a time."""

HOLD_SECONDS = 0.1
"""How long a lane keeps its connection at most while others may want it."""

IDLE_SECONDS = 0.02
"""How long a lane without work keeps its connection: the next item is about to come, or not."""

RETRY_AFTER = dt.timedelta(seconds=1)
_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_WRITES_REMEMBERED = 8


class Insistence(enum.Enum):
    """What happens to a batch whose connection broke."""

    GIVE_UP = enum.auto()
    """Each item fails with StorageUnavailableError: the requester decides."""
    INSIST = enum.auto()
    """It is written again, with `again` set, until PostgreSQL answers: it is decided already."""


@dataclasses.dataclass(slots=True)
class _Entry(Generic[Item, Result]):
    item: Item
    key: ProcessKey
    rival: Hashable | None
    future: asyncio.Future[Result]
    again: bool = False
    done: bool = False


Write = Callable[[Connection, Sequence[Item], bool], Awaitable[Sequence[Result]]]
"""Write a batch in one transaction and return one result per item, in the order of the items.

The flag says that the batch was sent before and may have been done already. Without it, another
batch may be written on the connection meanwhile.
"""


class GroupCommit(Generic[Item, Result]):
    """One kind of write, gathered."""

    def __init__(  # noqa: PLR0913  they are what a kind of write consists of
        self,
        *,
        name: str,
        write: Write[Item, Result],
        key: Callable[[Item], ProcessKey],
        pool: Pool,
        insistence: Insistence,
        lane_count: int,
        batch_max: int,
        queue_max: int,
        statement_timeout: float,
        rival: Callable[[Item], Hashable | None] | None = None,
        gather_max: float = 0.0,
        crowd: Callable[[], int] = lambda: 0,
        on_batch: Callable[[str, int], None] = lambda _name, _size: None,
    ) -> None:
        """Open nothing; `run` does the work.

        Args:
            name: For logs and metrics.
            write: Writes a batch.
            key: Which process an item is about.
            pool: Where a lane borrows its connection while it has work.
            insistence: What happens when the connection breaks.
            lane_count: Batches of this kind in flight at once.
            batch_max: Items of one batch.
            queue_max: Items that may wait over all lanes.
            statement_timeout: Seconds for one batch.
            rival: Returns what no two items of a batch may have in common, None where there is no
                such thing. By default it is the process.
            gather_max: Seconds by which a batch may be put off so that it fills; see `_gather`.
            crowd: Returns how many steps are in hand.
            on_batch: Told the name and the size of every batch written.
        """
        self.name = name
        self._write = write
        self._key = key
        self._rival = rival
        self._pool = pool
        self._insistence = insistence
        self._batch_max = batch_max
        self._queue_max = queue_max
        self._statement_timeout = statement_timeout
        self._gather_max = gather_max
        self._crowd = crowd
        self._on_batch = on_batch
        self._lanes = [_Lane[Item, Result]() for _ in range(lane_count)]
        self._group: asyncio.TaskGroup = asyncio.TaskGroup()
        self._closed = False

    @property
    def waiting_count(self) -> int:
        """Items that wait to be written."""
        return sum(len(lane.entries) for lane in self._lanes)

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Put an item in line and return the future of its result.

        Cancelling the future gives up the result, not the write.

        Raises:
            OverloadedError: As many items wait as may; nothing was put in line. Only with GIVE_UP:
                what is decided already is never refused.
            StorageUnavailableError: The engine is stopping.
        """
        if self._closed:
            raise errors.StorageUnavailableError("the engine is stopping")
        if self._insistence is Insistence.GIVE_UP and self.waiting_count >= self._queue_max:
            raise errors.OverloadedError(f"{self._queue_max} writes wait", RETRY_AFTER)
        key = self._key(item)
        lane = self._lanes[key.slot % len(self._lanes)]
        future = asyncio.get_running_loop().create_future()
        rival = key if self._rival is None else self._rival(item)
        lane.add(_Entry(item, key, rival, future))
        return future

    async def run(self) -> None:
        """Write until `close`, and then until every lane is empty.

        If it is cancelled, what is in line is lost, and what is in flight is unknown.
        """
        async with self._group:
            for number, lane in enumerate(self._lanes):
                self._group.create_task(self._run_lane(lane), name=f"{self.name} lane {number}")

    def close(self) -> None:
        """Take no more items; `run` ends once the lanes are empty."""
        self._closed = True
        for lane in self._lanes:
            lane.filled.set()

    async def _run_lane(self, lane: "_Lane[Item, Result]") -> None:
        while True:
            await lane.filled.wait()
            if not lane.entries:
                if self._closed:
                    return
                lane.filled.clear()
                continue
            try:
                await self._empty(lane)
            except errors.StorageUnavailableError as error:
                self._give_up(lane, error)
                _log.warning("batch not written", extra={"write": self.name, "why": error.why})
                await asyncio.sleep(lane.backoff)
                lane.backoff = min(2 * lane.backoff, _BACKOFF_MAX)

    async def _empty(self, lane: "_Lane[Item, Result]") -> None:
        """Write what is in line on one connection, and what comes soon after.

        To take it from the pool and to return it costs as much as a tenth of a small batch. A pool
        may be as small as one, though, and others wait there.
        """
        loop = asyncio.get_running_loop()
        async with connection_of(self._pool) as connection:
            until = loop.time() + HOLD_SECONDS
            try:
                while lane.flights or (lane.entries and loop.time() < until):
                    if lane.flights:
                        if loop.time() < until:
                            await self._follow(lane, connection)
                        await self._land(lane)
                    else:
                        await self._gather(lane, self._wanted())
                        self._launch(lane, connection)
                    if not lane.flights and not lane.entries and not self._closed:
                        await lane.wait(IDLE_SECONDS)
            finally:
                if lane.flights:
                    # Cancelled like this lane; the connection is theirs until they know it.
                    await asyncio.wait([flight.task for flight in lane.flights])

    def _wanted(self) -> int:
        """Return how many items a batch waits for."""
        return min(self._crowd() // 2, GATHER_ENOUGH, self._batch_max)

    def _launch(self, lane: "_Lane[Item, Result]", connection: Connection) -> None:
        """Send a batch on its way, if there is one that may go."""
        batch = lane.take(self._share(len(lane.entries), self._wanted()))
        if batch:
            repeats = any(entry.again for entry in batch)
            flight = _Flight(batch, asyncio.get_running_loop().time(), repeats)
            flying = self._fly(flight, connection)
            flight.task = self._group.create_task(flying, name=f"{self.name} batch")
            flight.task.add_done_callback(lambda _: lane.filled.set())
            lane.flights.append(flight)

    async def _fly(self, flight: "_Flight[Item, Result]", connection: Connection) -> None:
        try:
            await self._write_batch(connection, flight.batch)
        except errors.StorageUnavailableError as error:
            flight.error = error

    async def _follow(self, lane: "_Lane[Item, Result]", connection: Connection) -> None:
        """Send another batch after the one under way, if it becomes full before that is back.

        PostgreSQL goes on with it without waiting until this process has heard of the first.
        """
        first, wanted = lane.flights[0].task, self._wanted()
        if wanted >= GATHER_SPLIT and not lane.repeats and not first.done():
            await lane.wait(None, wanted)
            if not first.done():
                self._launch(lane, connection)

    async def _land(self, lane: "_Lane[Item, Result]") -> None:
        """Wait for the oldest batch under way.

        Raises:
            StorageUnavailableError: It was not written. None is under way any more, and those that
                were not written are back in line.
        """
        await asyncio.wait({lane.flights[0].task})
        if lane.flights[0].error is None:
            lane.landed(lane.flights.popleft())
            return
        await asyncio.wait([flight.task for flight in lane.flights])
        error, flights = lane.flights[0].error, list(lane.flights)
        lane.flights.clear()
        for flight in reversed(flights):
            if flight.error is not None:
                lane.put_back(flight.batch)
        raise error

    async def _gather(self, lane: "_Lane[Item, Result]", wanted: int) -> None:
        """Let a batch fill where there is a crowd.

        A write of one costs PostgreSQL ten times as much per item as a batch of 32. So with n steps
        in hand, a batch waits until half of them are in line, or GATHER_ENOUGH: while one half is
        written the other is at the processors, and both have something to do. To wait for more, or
        for a fixed time, lets both stand still.

        Some of the n may hang, or have no business here. So a batch starts no later than
        GATHER_WRITES times the duration of a write after the one before, at most `gather_max`.
        Three callers or fewer pay nothing, nor does who comes after a pause.

        Measured with a write of an admission's cost (2026-11, two cores shared with others, median
        of three; in front a pause of a quarter of a millisecond per step, at most 10 ms): 50
        self-driven steps 4,900 -> 8,500/s, 200 of them 10,000 -> 16,500/s; without any pause and
        split 7,800 and 11,600/s.
        """
        if len(lane.entries) < wanted and not lane.held_back:
            pause = min(self._gather_max, GATHER_WRITES * lane.write_seconds)
            left = lane.last_started_at + pause - asyncio.get_running_loop().time()
            if left > 0:
                await lane.wait(left, wanted)

    def _share(self, waiting_count: int, wanted: int) -> int:
        """Return how many a batch takes.

        If all steps in hand are in line, half of them stay: in one batch they would all be at the
        processors next, and then all in line again, while PostgreSQL and the processors wait for
        each other. A line longer than that is a backlog, and the larger the batch the better.
        """
        if wanted < GATHER_SPLIT:
            return self._batch_max
        return min(self._batch_max, max(wanted, waiting_count - wanted))

    async def _write_batch(
        self, connection: Connection, batch: "list[_Entry[Item, Result]]"
    ) -> None:
        fresh = [entry for entry in batch if not entry.again]
        again = len(fresh) < len(batch)
        for entry in fresh:
            entry.again = True
        items = [entry.item for entry in batch]
        try:
            results = await self._write_unless_undone(connection, items, again=again)
        except errors.StorageRefusedError as error:
            # Nothing was done, so those that had not been sent before still have not been.
            for entry in fresh:
                entry.again = False
            await self._split(connection, batch, error)
            return
        self._on_batch(self.name, len(batch))
        for entry, result in zip(batch, results, strict=True):
            entry.done = True
            if not entry.future.done():
                entry.future.set_result(result)

    async def _write_unless_undone(
        self, connection: Connection, items: Sequence[Item], *, again: bool
    ) -> Sequence[Result]:
        """Write, and once more where PostgreSQL undid it for the sake of another transaction."""
        for attempt in itertools.count(1):
            try:
                with translated():
                    async with asyncio.timeout(self._statement_timeout):
                        return await self._write(connection, items, again)
            except (struct.error, UnicodeError, OverflowError) as error:
                # No column can hold it, so that PostgreSQL did not even see it.
                raise errors.StorageRefusedError(f"{type(error).__name__}: {error}") from error
            except errors.StorageConflictError:
                if attempt == CONFLICT_ATTEMPTS_MAX:
                    raise
        raise AssertionError

    async def _split(
        self,
        connection: Connection,
        batch: "list[_Entry[Item, Result]]",
        error: errors.StorageRefusedError,
    ) -> None:
        """Write the halves of a batch that was refused as a whole; ends at the single culprit."""
        if len(batch) == 1:
            _log.error("item refused", extra={"write": self.name, "why": str(error)})
            batch[0].done = True
            if not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        middle = len(batch) // 2
        await self._write_batch(connection, batch[:middle])
        await self._write_batch(connection, batch[middle:])

    def _give_up(self, lane: "_Lane[Item, Result]", error: errors.StorageUnavailableError) -> None:
        """Fail what waits while PostgreSQL is away, unless it must be written come what may."""
        if self._insistence is Insistence.INSIST:
            return
        while lane.entries:
            entry = lane.entries.popleft()
            if not entry.future.done():
                entry.future.set_exception(error)


@dataclasses.dataclass(slots=True)
class _Flight(Generic[Item, Result]):
    """A batch under way.

    ``repeats`` says that some of it was sent before, ``error`` why it was not written.
    """

    batch: list[_Entry[Item, Result]]
    started_at: float
    repeats: bool
    error: errors.StorageUnavailableError | None = None
    task: asyncio.Task[None] = dataclasses.field(init=False)


class _Lane(Generic[Item, Result]):
    """Entries in the order in which they came."""

    def __init__(self) -> None:
        self.entries: collections.deque[_Entry[Item, Result]] = collections.deque()
        self.filled = asyncio.Event()
        self.last_started_at = 0.0
        self.last_landed_at = 0.0
        self.write_seconds = 0.0
        """How long a write takes lately."""
        self.backoff = _BACKOFF_FIRST
        self.held_back = False
        """Whether entries wait only because a rival went before them."""
        self._wanted = 1
        self.flights: collections.deque[_Flight[Item, Result]] = collections.deque()
        """Batches under way, the oldest first: one that PostgreSQL writes, and one behind it."""

    @property
    def repeats(self) -> bool:
        """Whether what was sent before is being sent again, or is about to be."""
        flies = bool(self.flights) and self.flights[0].repeats
        return flies or (bool(self.entries) and self.entries[0].again)

    def add(self, entry: _Entry[Item, Result]) -> None:
        """Put an entry at the end of the line."""
        self.entries.append(entry)
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

    def take(self, limit: int) -> list[_Entry[Item, Result]]:
        """Take entries from the front, no two rivals among them.

        The others keep their order; nobody passes an entry of the same process.
        """
        batch: list[_Entry[Item, Result]] = []
        passed: list[_Entry[Item, Result]] = []
        rivals: set[Hashable] = set()
        # Nobody may pass an item of a process that is under way: it may have to be written again.
        waiting = {entry.key for flight in self.flights for entry in flight.batch}
        # A crowd of rivals must not make every batch walk the whole line.
        for _ in range(min(len(self.entries), 4 * limit)):
            entry = self.entries.popleft()
            if entry.rival in rivals or entry.key in waiting:
                passed.append(entry)
                waiting.add(entry.key)
                continue
            if entry.rival is not None:
                rivals.add(entry.rival)
            batch.append(entry)
            if len(batch) == limit:
                break
        self.entries.extendleft(reversed(passed))
        self.held_back = bool(passed)
        self.last_started_at = asyncio.get_running_loop().time()
        return batch

    def landed(self, flight: "_Flight[Item, Result]") -> None:
        """Take note that a batch was written."""
        now = asyncio.get_running_loop().time()
        seconds = now - max(flight.started_at, self.last_landed_at)
        self.last_landed_at = now
        known = self.write_seconds or seconds
        self.write_seconds = known + (seconds - known) / _WRITES_REMEMBERED
        self.backoff = _BACKOFF_FIRST

    def put_back(self, batch: list[_Entry[Item, Result]]) -> None:
        """Return to the front what is not written yet, for a lane that insists.

        Whether somebody still waits for the result makes no difference.
        """
        self.entries.extendleft(entry for entry in reversed(batch) if not entry.done)
