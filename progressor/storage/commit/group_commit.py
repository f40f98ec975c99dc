"""Group commit: what is waiting at the moment becomes one statement, one round trip, one commit.

What dominates the cost of a durable write is not the rows but the statements and the commits. So a
write waits in a *lane*; while one batch of the lane is in flight, the next one fills, and follows
on the same connection as soon as it is full. At low load a batch is one item and nothing waits;
under load the batches grow by themselves.

What holds:

- Items of one process share a lane and are written in the order in which they came. Whether two of
  them may be in one batch, the kind of write says; see `rival`. No two batches in flight have a
  process in common, so that it makes no difference which of them has to be written again.
- Every item gets its own result. An item that PostgreSQL refuses, or that cannot even be sent,
  fails alone: a batch that fails as a whole is split until the culprit stands alone.
- An item whose process another transaction holds locked for long waits beside the line, with all
  that comes after it for that process; the others of its batch are written without it. So does an
  item that waits for another row, such as a gate. It is found by the row that PostgreSQL names, or
  else by halving the batch, and is tried again beside the lane, on a connection of its own.
- A batch whose fate is unknown (the connection broke) is given up or insisted on, as the kind of
  write demands; see `Insistence`. The next one is half as large, down to one item, since it may
  have been too much at once: for the server's statement timeout, its memory, or the gigabyte of a
  message. With each batch that is written the next may be twice as large again.
"""

import asyncio
import dataclasses
import datetime as dt
import enum
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.storage.commit.shard import ASIDE_SECONDS, Entry, Flight, Item, Lane, Result
from progressor.storage.postgres.backoff import Backoff, steady
from progressor.storage.postgres.locks import FindBlocked, FindLocked, Reason
from progressor.storage.postgres.pools import (
    Connection,
    Pool,
    before_sending,
    connection_of,
    translated,
)

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

BLOCKED_SECONDS_MAX = 1.0
"""How often, at least, what waits for a row such as a gate is tried again."""

RETRY_AFTER = dt.timedelta(seconds=1)

QUEUE_BYTES_MAX = 256 * 1024 * 1024
"""What may wait in the lanes of one kind of write, over which requests are OVERLOADED."""


class Insistence(enum.Enum):
    """What happens to a batch whose connection broke."""

    GIVE_UP = enum.auto()
    """Each item fails with StorageUnavailableError: the requester decides."""
    INSIST = enum.auto()
    """It is written again, with `again` set, until PostgreSQL answers: it is decided already."""


Write = Callable[[Connection, Sequence[Item], bool], Awaitable[Sequence[Result]]]
"""Write a batch in one transaction and return one result per item, in the order of the items.

The flag says that the batch was sent before and may have been done already. Without it, another
batch may be written on the connection meanwhile.

What it raises before it sends anything is a StorageRefusedError (`pools.before_sending`): it is one
item's fault. Whatever else it raises that is not PostgreSQL's ends the group commit.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """How many items of a kind of write are in line, and how many bytes they take."""

    name: str
    count: int
    size: int


OnBatch = Callable[[str, int, float], None]
"""Told the name and the size of a batch that was written, and the seconds that its first item had
waited when it was sent."""


def tell_nobody(_name: str, _size: int, _wait_seconds: float) -> None:
    """Do nothing."""


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
        find_locked: FindLocked,
        find_blocked: FindBlocked[Item],
        lane_count: int,
        batch_max: int,
        queue_max: int,
        statement_timeout: float,
        rival: Callable[[Item], Hashable | None] | None = None,
        size: Callable[[Item], int] = lambda _: 0,
        gather_max: float = 0.0,
        crowd: Callable[[], int] = lambda: 0,
        jitter: Callable[[], float] = steady,
        on_batch: OnBatch = tell_nobody,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Open nothing; `run` does the work.

        Args:
            name: For logs and metrics.
            write: Writes a batch.
            key: Which process an item is about.
            pool: Where a lane borrows its connection while it has work.
            insistence: What happens when the connection breaks.
            find_locked: Asked which processes of a batch others hold locked.
            find_blocked: Asked, if none, which items have to do with the row that is locked.
            lane_count: Batches of this kind in flight at once.
            batch_max: Items of one batch.
            queue_max: Items that may wait over all lanes.
            statement_timeout: Seconds for one batch.
            rival: Returns what no two items of a batch may have in common, None where there is no
                such thing. By default it is the process.
            size: Returns how many bytes an item takes, about.
            gather_max: Seconds by which a batch may be put off so that it fills; see `_gather`.
            crowd: Returns how many steps are in hand.
            jitter: Spreads the pauses of an outage, from -1 to 1.
            on_batch: Told of every batch written.
            now: For how long items wait. The event loop's own clock may count in milliseconds.
        """
        self.name = name
        self._write = write
        self._key = key
        self._rival = rival
        self._size = size
        self._pool = pool
        self._insistence = insistence
        self._find_locked = find_locked
        self._find_blocked = find_blocked
        self._jitter = jitter
        self._batch_max = batch_max
        self._queue_max = queue_max
        self._statement_timeout = statement_timeout
        self._gather_max = gather_max
        self._crowd = crowd
        self._on_batch = on_batch
        self._now = now
        self._lanes = [Lane[Item, Result](batch_max, jitter) for _ in range(lane_count)]
        self._group: asyncio.TaskGroup = asyncio.TaskGroup()
        self._closed = False

    @property
    def waiting_count(self) -> int:
        """Items that wait to be written."""
        return sum(lane.waiting_count for lane in self._lanes)

    @property
    def waiting_bytes(self) -> int:
        """What they take."""
        return sum(lane.bytes_waiting for lane in self._lanes)

    @property
    def waiting(self) -> Waiting:
        """Both, by name; to be read from any thread."""
        return Waiting(self.name, self.waiting_count, self.waiting_bytes)

    def is_waiting(self, key: ProcessKey) -> bool:
        """Tell whether anything about a process is in line, or under way."""
        return self._lanes[key.slot % len(self._lanes)].is_waiting(key)

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Put an item in line and return the future of its result.

        Cancelling the future gives up the result, not the write.

        Raises:
            OverloadedError: As many items wait as may, or bytes; nothing was put in line. Only with
                GIVE_UP: what is decided already is never refused.
            StorageRefusedError: What the item is about, or its size, cannot be found out.
            StorageUnavailableError: The engine is stopping.
        """
        if self._closed:
            raise errors.StorageUnavailableError("the engine is stopping")
        if self._insistence is Insistence.GIVE_UP:
            self._refuse_too_many()
        future = asyncio.get_running_loop().create_future()
        with before_sending():
            key = self._key(item)
            lane = self._lanes[key.slot % len(self._lanes)]
            rival = key if self._rival is None else self._rival(item)
            size = self._size(item)
        lane.add(Entry(item, key, rival, future, size, since=self._now()))
        return future

    def _refuse_too_many(self) -> None:
        if self.waiting_count >= self._queue_max:
            raise errors.OverloadedError(f"{self._queue_max} writes wait", RETRY_AFTER)
        if self.waiting_bytes >= QUEUE_BYTES_MAX:
            raise errors.OverloadedError(f"writes of {QUEUE_BYTES_MAX} bytes wait", RETRY_AFTER)

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

    async def _run_lane(self, lane: Lane[Item, Result]) -> None:
        while True:
            if not lane.has_work:
                if self._closed and not lane.aside:
                    return
                lane.filled.clear()
                await lane.filled.wait()
                continue
            try:
                await self._empty(lane)
            except errors.StorageUnavailableError as error:
                # Where only connections are short, nothing was sent, and all keep their places.
                if not isinstance(error, errors.StorageOverloadedError):
                    self._give_up(lane, error)
                _log.warning("batch not written", extra={"write": self.name, "why": error.why})
                await asyncio.sleep(lane.backoff.pause())

    async def _empty(self, lane: Lane[Item, Result]) -> None:
        """Write what is in line on one connection, and what comes soon after.

        To take it from the pool and to return it costs as much as a tenth of a small batch. A pool
        may be as small as one, though, and others wait there.
        """
        loop = asyncio.get_running_loop()
        async with connection_of(self._pool) as connection:
            until = loop.time() + HOLD_SECONDS
            try:
                while lane.flights or (lane.has_work and loop.time() < until):
                    if lane.flights:
                        if loop.time() < until:
                            await self._follow(lane, connection)
                        await self._land(lane)
                    elif lane.asks:
                        await self._ask(lane, connection)
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

    def _launch(self, lane: Lane[Item, Result], connection: Connection) -> None:
        """Send a batch on its way, if there is one that may go."""
        batch = lane.take(min(lane.limit, self._share(len(lane.entries), self._wanted())))
        if batch:
            repeats = any(entry.again for entry in batch)
            flight = Flight(batch, asyncio.get_running_loop().time(), repeats)
            flying = self._fly(flight, connection)
            flight.task = self._group.create_task(flying, name=f"{self.name} batch")
            flight.task.add_done_callback(lambda _: lane.filled.set())
            lane.flights.append(flight)

    async def _fly(self, flight: Flight[Item, Result], connection: Connection) -> None:
        try:
            flight.locked = await self._write_batch(connection, flight.batch)
        except errors.StorageUnavailableError as error:
            flight.error = error

    async def _follow(self, lane: Lane[Item, Result], connection: Connection) -> None:
        """Send another batch after the one under way, if it becomes full before that is back.

        PostgreSQL goes on with it without waiting until this process has heard of the first.
        """
        first, wanted = lane.flights[0].task, self._wanted()
        if wanted >= GATHER_SPLIT and not lane.repeats and not first.done():
            await lane.wait(None, wanted)
            if not first.done():
                self._launch(lane, connection)

    async def _land(self, lane: Lane[Item, Result]) -> None:
        """Wait for the oldest batch under way.

        Raises:
            StorageUnavailableError: It was not written. None is under way any more, and those that
                were not written are back in line.
        """
        await asyncio.wait({lane.flights[0].task})
        if lane.flights[0].error is None:
            flight = lane.flights.popleft()
            lane.landed(flight)
            self._set_aside(lane, flight)
            return
        await asyncio.wait([flight.task for flight in lane.flights])
        lane.limit = max(1, len(lane.flights[0].batch) // 2)
        error, flights = lane.flights[0].error, list(lane.flights)
        lane.flights.clear()
        for flight in reversed(flights):
            if flight.error is not None:
                lane.put_back(flight.batch)
            self._set_aside(lane, flight)
        raise error

    def _set_aside(self, lane: Lane[Item, Result], flight: Flight[Item, Result]) -> None:
        lane.set_aside(flight.locked)
        if lane.has_blocked and not lane.tries_blocked:
            lane.tries_blocked = True
            self._group.create_task(self._try_blocked(lane), name=f"{self.name} blocked")

    async def _try_blocked(self, lane: Lane[Item, Result]) -> None:
        """Write what is blocked, beside the lane, until nothing is.

        One of those that wait for the same shows whether all of them still do.
        """
        backoff = Backoff(first=ASIDE_SECONDS, longest=BLOCKED_SECONDS_MAX, jitter=self._jitter)
        while lane.has_blocked:
            await asyncio.sleep(backoff.pause())
            self._lose_patience(lane)
            for entry in lane.first_blocked():
                lane.tried = entry
                try:
                    async with connection_of(self._pool) as connection:
                        await self._write_unless_refused(connection, [entry])
                except errors.StorageLockedError:
                    continue
                except errors.StorageUnavailableError as error:
                    facts = {"write": self.name, "why": error.why}
                    _log.warning("blocked item not written", extra=facts)
                    self._give_up_tried(lane, entry, error)
                    break
                finally:
                    lane.tried = None
                lane.let_go(entry)
                backoff.reset()
        lane.tries_blocked = False
        lane.filled.set()

    def _give_up_tried(
        self,
        lane: Lane[Item, Result],
        entry: Entry[Item, Result],
        error: errors.StorageUnavailableError,
    ) -> None:
        """Fail a blocked item that may have been written, unless it must be come what may."""
        if self._insistence is Insistence.GIVE_UP and entry.again:
            lane.let_go(entry)
            _fail([entry], error)

    async def _ask(self, lane: Lane[Item, Result], connection: Connection) -> None:
        """Return to the line what was put aside and is locked no more; lose patience with others.

        Raises:
            StorageUnavailableError: No connection was available; all items stay queued.
        """
        keys = list(dict.fromkeys(entry.key for entry in lane.aside))
        lane.asked(await self._find_locked(connection, keys))
        self._lose_patience(lane)

    def _lose_patience(self, lane: Lane[Item, Result]) -> None:
        """Fail those whose callers have waited for a lock as long as they may."""
        if self._insistence is Insistence.GIVE_UP:
            seconds = self._statement_timeout
            error = errors.StorageLockedError(f"its process has been locked for {seconds:g} s")
            _fail(lane.tired(seconds), error)

    async def _gather(self, lane: Lane[Item, Result], wanted: int) -> None:
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
        self, connection: Connection, batch: list[Entry[Item, Result]]
    ) -> list[Entry[Item, Result]]:
        """Write a batch, but for those whose processes are locked: return them.

        Raises:
            StorageUnavailableError: It was not written, or parts of it were, which are `done`.
        """
        locked: list[Entry[Item, Result]] = []
        while batch:
            try:
                return locked + await self._write_unless_refused(connection, batch)
            except errors.StorageLockedError as error:
                found = await self._find_culprits(connection, batch, error)
            if not found:
                # The lock holder is unknown and may just have released its lock.
                return locked + await self._halve(connection, batch)
            locked += found
            culprits = {id(entry) for entry in found}
            batch = [entry for entry in batch if id(entry) not in culprits]
        return locked

    async def _find_culprits(
        self,
        connection: Connection,
        batch: list[Entry[Item, Result]],
        error: errors.StorageLockedError,
    ) -> list[Entry[Item, Result]]:
        """Return the items for which a batch had to wait too long, if it can be found out."""
        held = await self._find_locked(connection, [entry.key for entry in batch])
        found = [entry for entry in batch if entry.key in held]
        if found:
            return found
        if len(batch) == 1:
            reasons: Mapping[int, Reason] = {0: error.row or id(batch[0])}
        else:
            items = [entry.item for entry in batch]
            reasons = await self._find_blocked(connection, items, error.row)
        for place, reason in reasons.items():
            batch[place].blocked_by = reason
        return [batch[place] for place in reasons]

    async def _write_unless_refused(
        self, connection: Connection, batch: list[Entry[Item, Result]]
    ) -> list[Entry[Item, Result]]:
        sent_before = [entry.again for entry in batch]
        again = any(sent_before)
        for entry in batch:
            entry.again = True
        items = [entry.item for entry in batch]
        wait_seconds = self._now() - batch[0].since
        try:
            results = await self._write_unless_undone(connection, items, again=again)
        except (errors.StorageRefusedError, errors.StorageLockedError) as error:
            # Nothing was done. A caller with another answer looks for it, on a connection on which
            # another batch may be under way.
            for entry, was_sent in zip(batch, sent_before, strict=True):
                entry.again = was_sent
            if isinstance(error, errors.StorageLockedError):
                raise
            return await self._split(connection, batch, error)
        self._on_batch(self.name, len(batch), wait_seconds)
        for entry, result in zip(batch, results, strict=True):
            entry.done = True
            if not entry.future.done():
                entry.future.set_result(result)
        return []

    async def _write_unless_undone(
        self, connection: Connection, items: Sequence[Item], *, again: bool
    ) -> Sequence[Result]:
        """Write, and once more where PostgreSQL undid it for the sake of another transaction."""
        for attempt in itertools.count(1):
            try:
                with translated():
                    async with asyncio.timeout(self._statement_timeout):
                        return await self._write(connection, items, again)
            except errors.StorageLockedError:
                raise
            except errors.StorageConflictError:
                if attempt == CONFLICT_ATTEMPTS_MAX:
                    raise
            except errors.StorageRefusedError as error:
                if not error.doubtful or attempt == CONFLICT_ATTEMPTS_MAX:
                    raise
        raise AssertionError

    async def _halve(
        self, connection: Connection, batch: list[Entry[Item, Result]]
    ) -> list[Entry[Item, Result]]:
        """Write the halves of a batch; return what is locked, down to the single culprit."""
        middle = len(batch) // 2
        locked = await self._write_batch(connection, batch[:middle])
        return locked + await self._write_batch(connection, batch[middle:])

    async def _split(
        self,
        connection: Connection,
        batch: list[Entry[Item, Result]],
        error: errors.StorageRefusedError,
    ) -> list[Entry[Item, Result]]:
        """Write the halves of a batch that was refused as a whole; ends at the single culprit."""
        if len(batch) == 1:
            facts = {"write": self.name, "why": str(error)}
            _log.error("item refused", extra=facts, exc_info=error.__cause__)
            batch[0].done = True
            if not batch[0].future.done():
                batch[0].future.set_exception(error)
            return []
        return await self._halve(connection, batch)

    def _give_up(self, lane: Lane[Item, Result], error: errors.StorageUnavailableError) -> None:
        """Fail what waits while PostgreSQL is away, unless it must be written come what may."""
        if self._insistence is Insistence.INSIST:
            return
        _fail(lane.clear(), error)


def _fail(entries: Iterable[Entry[Item, Result]], error: errors.StorageUnavailableError) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(error)
