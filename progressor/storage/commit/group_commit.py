"""Group commit: the items that are waiting become one statement, one round trip, one commit.

The cost of a durable write is in its statement and its commit, not in its rows. So an item waits in
the queue of a *shard*. While one batch of a shard is in flight, the next one fills; it follows on
the same connection as soon as it is full. At low load a batch is one item and nothing waits; under
load batches grow by themselves.

Guarantees:

- Items of one process share a shard and are written in the order in which they were submitted. The
  kind of write says whether two of them may be in one batch; see `WriteKind.conflict_key`. No two
  batches in flight have a process in common, so either of them can be written again on its own.
- Every item gets its own result. An item that PostgreSQL refuses, or that cannot be sent, fails
  alone: a batch that fails as a whole is halved until the offending item is found.
- An item whose process another transaction keeps locked is *parked*, with all later items of that
  process; the rest of its batch is written without it. The same holds for an item that waits for
  another row, such as a gate. PostgreSQL's error names the row, or halving the batch finds the
  item; such an item is retried on a connection of its own.
- When the connection breaks, whether the batch was written is unknown. It fails or is written
  again, as the kind of write demands; see `Insistence`. The next batch is half as large, down to
  one item, because the batch may have exceeded a limit: the server's statement timeout or memory,
  or the size of a message. Each batch that is written doubles the next one's limit again.
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
from progressor.settings.sections import Commit
from progressor.storage.commit.shard import (
    PARKED_CHECK_SECONDS,
    Entry,
    InFlightBatch,
    Item,
    Result,
    Shard,
)
from progressor.storage.postgres.backoff import Backoff, steady
from progressor.storage.postgres.context import StorageContext
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
"""Items at which a batch is full enough: doubling it would save 5 % per item."""

GATHER_WRITES = 6
"""How many durations of a write a batch may be delayed."""

GATHER_SPLIT = 8
"""Items from which on it is worth writing half of the running steps at a time."""

HOLD_SECONDS = 0.1
"""How long a shard keeps its connection at most while others may want it."""

IDLE_SECONDS = 0.02
"""How long a shard without work keeps its connection, in case the next item comes soon."""

BLOCKED_SECONDS_MAX = 1.0
"""Longest pause between retries of an item that waits for a row such as a gate."""

RETRY_AFTER = dt.timedelta(seconds=1)

QUEUE_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that may wait in the shards of one kind of write; further requests are OVERLOADED."""


class Insistence(enum.Enum):
    """What happens to a batch whose connection broke."""

    GIVE_UP = enum.auto()
    """Each item fails with StorageUnavailableError: the requester decides."""
    INSIST = enum.auto()
    """It is written again, with `again` set, until PostgreSQL answers: it is already decided."""


Write = Callable[[Connection, Sequence[Item], bool], Awaitable[Sequence[Result]]]
"""Write a batch in one transaction and return one result per item, in the order of the items.

The flag says that the batch was sent before and may have been written. Without it, another batch
may be written on the connection meanwhile.

An error raised before anything is sent must be a StorageRefusedError (`pools.before_sending`): one
item caused it. Any other error that is not PostgreSQL's ends the group commit.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    name: str
    count: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteKind(Generic[Item, Result]):
    """One kind of write.

    ``key`` returns the process of an item and ``size`` its approximate bytes. ``find_locked`` finds
    the processes of a batch that another transaction has locked; if there are none,
    ``find_blocked`` finds the items that need the locked row. ``conflict_key`` returns what no two
    items of a batch may share, or None where nothing conflicts; by default it is the process.
    """

    name: str
    write: Write[Item, Result]
    key: Callable[[Item], ProcessKey]
    insistence: Insistence
    find_locked: FindLocked
    find_blocked: FindBlocked[Item]
    conflict_key: Callable[[Item], Hashable | None] | None = None
    size: Callable[[Item], int] = lambda _: 0


BatchObserver = Callable[[str, int, float], None]
"""Called with the name and size of a batch that was written, and the seconds that its first item
had waited when it was sent."""


def ignore_batch(_name: str, _size: int, _wait_seconds: float) -> None:
    """Do nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitContext:
    """What a group commit uses of the replica around it.

    ``step_count`` returns how many steps are running; ``jitter``, from -1 to 1, spreads the pauses
    of an outage; ``now`` times how long items wait, since the event loop's clock may count in
    milliseconds.
    """

    step_count: Callable[[], int] = lambda: 0
    jitter: Callable[[], float] = steady
    on_batch: BatchObserver = ignore_batch
    now: Callable[[], float] = time.perf_counter


class GroupCommit(Generic[Item, Result]):
    def __init__(
        self,
        kind: WriteKind[Item, Result],
        *,
        pool: Pool,
        settings: Commit,
        statement_timeout: dt.timedelta,
        context: CommitContext,
    ) -> None:
        self.name = kind.name
        self._kind = kind
        self._pool = pool
        self._batch_max, self._queue_max = settings.batch_max, settings.queue_max
        self._gather_max = settings.gather.total_seconds()
        self._statement_timeout = statement_timeout.total_seconds()
        self._context = context
        self._shards = [
            Shard[Item, Result](settings.batch_max, context.jitter)
            for _ in range(settings.shard_count)
        ]
        self._group: asyncio.TaskGroup = asyncio.TaskGroup()
        self._closed = False

    @property
    def waiting(self) -> Waiting:
        """What waits to be written; to be read from any thread."""
        return Waiting(
            self.name,
            sum(shard.waiting_count for shard in self._shards),
            sum(shard.bytes_waiting for shard in self._shards),
        )

    def is_waiting(self, key: ProcessKey) -> bool:
        return self._shards[key.slot % len(self._shards)].is_waiting(key)

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Queue an item and return the future of its result.

        Cancelling the future gives up the result, not the write.

        Raises:
            OverloadedError: Too many items or bytes wait; nothing was queued. Only with GIVE_UP:
                what is already decided is never refused.
            StorageRefusedError: The item's process or size cannot be determined.
            StorageUnavailableError: The engine is stopping.
        """
        kind = self._kind
        if self._closed:
            raise errors.StorageUnavailableError("the engine is stopping")
        if kind.insistence is Insistence.GIVE_UP:
            self._refuse_too_many()
        future = asyncio.get_running_loop().create_future()
        with before_sending():
            key = kind.key(item)
            shard = self._shards[key.slot % len(self._shards)]
            conflict_key = key if kind.conflict_key is None else kind.conflict_key(item)
            size = kind.size(item)
        shard.add(Entry(item, key, conflict_key, future, size, since=self._context.now()))
        return future

    def _refuse_too_many(self) -> None:
        waiting = self.waiting
        if waiting.count >= self._queue_max:
            raise errors.OverloadedError(
                f"{self._queue_max} writes are already waiting", RETRY_AFTER
            )
        if waiting.size >= QUEUE_BYTES_MAX:
            raise errors.OverloadedError(
                f"writes of {QUEUE_BYTES_MAX} bytes are already waiting", RETRY_AFTER
            )

    async def run(self) -> None:
        """Write until `close`, and then until every shard is empty.

        If it is cancelled, queued items are lost, and the fate of batches in flight is unknown.
        """
        async with self._group:
            for number, shard in enumerate(self._shards):
                self._group.create_task(self._run_shard(shard), name=f"{self.name} shard {number}")

    def close(self) -> None:
        """Take no more items; `run` ends once the shards are empty."""
        self._closed = True
        for shard in self._shards:
            shard.filled.set()

    async def _run_shard(self, shard: Shard[Item, Result]) -> None:
        while True:
            if not shard.has_work:
                if self._closed and not shard.parked:
                    return
                shard.filled.clear()
                await shard.filled.wait()
                continue
            try:
                await self._drain(shard)
            except errors.StorageUnavailableError as error:
                # If the pool has no free connection, nothing was sent, and items stay queued.
                if not isinstance(error, errors.StorageOverloadedError):
                    self._fail_waiting(shard, error)
                _log.warning("batch not written", extra={"write": self.name, "why": error.why})
                await asyncio.sleep(shard.backoff.pause())

    async def _drain(self, shard: Shard[Item, Result]) -> None:
        """Write the queue on one connection, and what is submitted soon after.

        Borrowing and returning a connection costs a tenth of a small batch. But the pool may have
        a single connection, for which others wait.
        """
        loop = asyncio.get_running_loop()
        async with connection_of(self._pool) as connection:
            until = loop.time() + HOLD_SECONDS
            try:
                while shard.in_flight or (shard.has_work and loop.time() < until):
                    if shard.in_flight:
                        if loop.time() < until:
                            await self._send_another(shard, connection)
                        await self._await_oldest(shard)
                    elif shard.check_is_due:
                        await self._check_parked(shard, connection)
                    else:
                        await self._gather(shard, self._wanted())
                        await self._send(shard, connection)
                    if not shard.in_flight and not shard.entries and not self._closed:
                        await shard.wait(IDLE_SECONDS)
            finally:
                if tasks := shard.tasks:
                    # Cancelled like this task; they use the connection until they notice.
                    await asyncio.wait(tasks)

    def _wanted(self) -> int:
        return min(self._context.step_count() // 2, GATHER_ENOUGH, self._batch_max)

    async def _send(self, shard: Shard[Item, Result], connection: Connection) -> None:
        """Send a batch in a task of its own, or, where no other may follow it, write it at once."""
        wanted = self._wanted()
        entries = shard.take(min(shard.limit, self._share(len(shard.entries), wanted)))
        if not entries:
            return
        repeats = any(entry.again for entry in entries)
        batch = InFlightBatch(entries, asyncio.get_running_loop().time(), repeats)
        shard.in_flight.append(batch)
        writing = self._write_in_flight(batch, connection)
        if wanted < GATHER_SPLIT:
            # A lone caller waits for each task that is started in between.
            await writing
            # And goes on before the shard looks what is next.
            await asyncio.sleep(0)
            return
        batch.task = self._group.create_task(writing, name=f"{self.name} batch")
        batch.task.add_done_callback(lambda _: shard.filled.set())

    async def _write_in_flight(
        self, batch: InFlightBatch[Item, Result], connection: Connection
    ) -> None:
        try:
            batch.locked = await self._write_batch(connection, batch.entries)
        except errors.StorageUnavailableError as error:
            batch.error = error

    async def _send_another(self, shard: Shard[Item, Result], connection: Connection) -> None:
        """Send a second batch if it fills up before the first one is written.

        PostgreSQL starts on it at once, without waiting for this process to read the first result.
        """
        first, wanted = shard.in_flight[0].task, self._wanted()
        if first is None or first.done() or wanted < GATHER_SPLIT or shard.repeats:
            return
        await shard.wait(None, wanted)
        if not first.done():
            await self._send(shard, connection)

    async def _await_oldest(self, shard: Shard[Item, Result]) -> None:
        """Wait for the oldest batch in flight.

        Raises:
            StorageUnavailableError: It was not written. No batch is in flight, and items
                that were not written are queued again.
        """
        oldest = shard.in_flight[0]
        if oldest.task is not None:
            await asyncio.wait({oldest.task})
        error = oldest.error
        if error is None:
            shard.in_flight.popleft()
            shard.note_written(oldest)
            self._park(shard, oldest)
            return
        if tasks := shard.tasks:
            await asyncio.wait(tasks)
        shard.limit = max(1, len(oldest.entries) // 2)
        batches = list(shard.in_flight)
        shard.in_flight.clear()
        for batch in reversed(batches):
            if batch.error is not None:
                shard.put_back(batch.entries)
            self._park(shard, batch)
        raise error

    def _park(self, shard: Shard[Item, Result], batch: InFlightBatch[Item, Result]) -> None:
        shard.park(batch.locked)
        if shard.has_blocked and not shard.retries_blocked:
            shard.retries_blocked = True
            self._group.create_task(self._retry_blocked(shard), name=f"{self.name} blocked")

    async def _retry_blocked(self, shard: Shard[Item, Result]) -> None:
        """Write blocked items on a connection of their own until none is left.

        Of the items that wait for the same row, trying one shows whether the others still wait.
        """
        backoff = Backoff(
            first=PARKED_CHECK_SECONDS, longest=BLOCKED_SECONDS_MAX, jitter=self._context.jitter
        )
        while shard.has_blocked:
            await asyncio.sleep(backoff.pause())
            self._expire_parked(shard)
            for entry in shard.first_blocked():
                shard.retried = entry
                try:
                    async with connection_of(self._pool) as connection:
                        await self._write_unless_refused(connection, [entry])
                except errors.StorageLockedError:
                    continue
                except errors.StorageUnavailableError as error:
                    facts = {"write": self.name, "why": error.why}
                    _log.warning("blocked item not written", extra=facts)
                    if self._kind.insistence is Insistence.GIVE_UP and entry.again:
                        # It may have been written: the requester decides.
                        shard.release(entry)
                        _fail([entry], error)
                    break
                finally:
                    shard.retried = None
                shard.release(entry)
                backoff.reset()
        shard.retries_blocked = False
        shard.filled.set()

    async def _check_parked(self, shard: Shard[Item, Result], connection: Connection) -> None:
        """Queue parked items whose process is no longer locked, and expire others.

        Raises:
            StorageUnavailableError: No connection was available; all items stay parked.
        """
        keys = list(dict.fromkeys(entry.key for entry in shard.parked))
        shard.unpark(await self._kind.find_locked(connection, keys))
        self._expire_parked(shard)

    def _expire_parked(self, shard: Shard[Item, Result]) -> None:
        """Fail items whose callers have waited for a lock for as long as they may."""
        if self._kind.insistence is Insistence.GIVE_UP:
            seconds = self._statement_timeout
            error = errors.StorageLockedError(f"its process has been locked for {seconds:g} s")
            _fail(shard.take_expired(seconds), error)

    async def _gather(self, shard: Shard[Item, Result], wanted: int) -> None:
        """Let a batch fill while many steps are running.

        A write of one item costs PostgreSQL ten times as much per item as a batch of 32. So with n
        steps running, a batch waits until half of them are queued, or GATHER_ENOUGH: while one half
        is written, the other is at the processors, and both sides are busy. Waiting for more, or
        for a fixed time, would idle both.

        Some of the n may hang or never write here. So a batch starts no later than GATHER_WRITES
        times the duration of a write after the one before, and at most `gather` after it. With
        three callers or fewer, and after a pause, a batch starts at once.

        Measured with a write of an admission's cost (2026-11, two cores shared with others, median
        of three; in front a pause of a quarter of a millisecond per step, at most 10 ms): 50
        self-driven steps 4,900 -> 8,500/s, 200 of them 10,000 -> 16,500/s; without any pause and
        split 7,800 and 11,600/s.
        """
        if len(shard.entries) < wanted and not shard.held_back:
            pause = min(self._gather_max, GATHER_WRITES * shard.write_seconds)
            left = shard.last_started_at + pause - asyncio.get_running_loop().time()
            if left > 0:
                await shard.wait(left, wanted)

    def _share(self, waiting_count: int, wanted: int) -> int:
        """Return how many items a batch takes.

        If all running steps are queued, half of them stay. In one batch they would all be at the
        processors next and then all queued again, so PostgreSQL and the processors would wait for
        each other. A longer queue is a backlog: the larger the batch, the better.
        """
        if wanted < GATHER_SPLIT:
            return self._batch_max
        return min(self._batch_max, max(wanted, waiting_count - wanted))

    async def _write_batch(
        self, connection: Connection, batch: list[Entry[Item, Result]]
    ) -> list[Entry[Item, Result]]:
        """Write a batch except for the items whose processes are locked, and return those.

        Raises:
            StorageUnavailableError: The items that are not `done` were not written.
        """
        locked: list[Entry[Item, Result]] = []
        while batch:
            try:
                return locked + await self._write_unless_refused(connection, batch)
            except errors.StorageLockedError as error:
                found = await self._find_locked(connection, batch, error)
            if not found:
                # The lock holder is unknown and may just have released its lock.
                return locked + await self._halve(connection, batch)
            locked += found
            found_ids = {id(entry) for entry in found}
            batch = [entry for entry in batch if id(entry) not in found_ids]
        return locked

    async def _find_locked(
        self,
        connection: Connection,
        batch: list[Entry[Item, Result]],
        error: errors.StorageLockedError,
    ) -> list[Entry[Item, Result]]:
        """Return the items whose locks made a batch fail; empty if they cannot be found."""
        locked = await self._kind.find_locked(connection, [entry.key for entry in batch])
        found = [entry for entry in batch if entry.key in locked]
        if found:
            return found
        if len(batch) == 1:
            reasons: Mapping[int, Reason] = {0: error.row or id(batch[0])}
        else:
            items = [entry.item for entry in batch]
            reasons = await self._kind.find_blocked(connection, items, error.row)
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
        wait_seconds = self._context.now() - batch[0].since
        try:
            results = await self._write_unless_undone(connection, items, again=again)
        except (errors.StorageRefusedError, errors.StorageLockedError) as error:
            # Nothing was written, so the items are as new: marked as sent, they would be looked up
            # on a connection on which another batch may be in flight.
            for entry, was_sent in zip(batch, sent_before, strict=True):
                entry.again = was_sent
            if isinstance(error, errors.StorageLockedError):
                raise
            return await self._split(connection, batch, error)
        self._context.on_batch(self.name, len(batch), wait_seconds)
        for entry, result in zip(batch, results, strict=True):
            entry.done = True
            if not entry.future.done():
                entry.future.set_result(result)
        return []

    async def _write_unless_undone(
        self, connection: Connection, items: Sequence[Item], *, again: bool
    ) -> Sequence[Result]:
        """Write, and repeat it if PostgreSQL rolled it back in favour of another transaction."""
        for attempt in itertools.count(1):
            try:
                with translated():
                    async with asyncio.timeout(self._statement_timeout):
                        return await self._kind.write(connection, items, again)
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
        middle = len(batch) // 2
        locked = await self._write_batch(connection, batch[:middle])
        return locked + await self._write_batch(connection, batch[middle:])

    async def _split(
        self,
        connection: Connection,
        batch: list[Entry[Item, Result]],
        error: errors.StorageRefusedError,
    ) -> list[Entry[Item, Result]]:
        """Write the halves of a batch that was refused; a single item fails with the error."""
        if len(batch) == 1:
            facts = {"write": self.name, "why": str(error)}
            _log.error("item rejected", extra=facts, exc_info=error.__cause__)
            batch[0].done = True
            _fail(batch, error)
            return []
        return await self._halve(connection, batch)

    def _fail_waiting(
        self, shard: Shard[Item, Result], error: errors.StorageUnavailableError
    ) -> None:
        """Fail what waits while PostgreSQL is unreachable, except what has to be written."""
        if self._kind.insistence is Insistence.GIVE_UP:
            _fail(shard.take_all(), error)


class GroupCommits(Generic[Item, Result]):
    """The group commits of one subject, on one pool."""

    def __init__(self, context: StorageContext, *, settings: Commit, commit: CommitContext) -> None:
        self._context, self._settings, self._commit = context, settings, commit
        self._groups: list[GroupCommit[Item, Result]] = []

    def _group(self, kind: WriteKind[Item, Result]) -> GroupCommit[Item, Result]:
        group = GroupCommit(
            kind,
            pool=self._context.pool,
            settings=self._settings,
            statement_timeout=self._context.statement_timeout,
            context=self._commit,
        )
        self._groups.append(group)
        return group

    def waiting(self) -> Sequence[Waiting]:
        return [group.waiting for group in self._groups]

    def is_waiting(self, key: ProcessKey) -> bool:
        return any(group.is_waiting(key) for group in self._groups)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                tasks.create_task(group.run(), name=group.name)

    def close(self) -> None:
        for group in self._groups:
            group.close()


def _fail(entries: Iterable[Entry[Item, Result]], error: errors.StorageError) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(error)
