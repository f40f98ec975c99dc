"""Group read: what is asked for at the moment becomes one statement and one round trip.

A statement costs this process a tenth of a millisecond, and PostgreSQL two; one more item in it
costs a fraction of that. So a read is queued until a *reader* is free, and a reader takes all
that wait. One alone is read at once; under load the batches grow by themselves.

What holds:

- An item is read after it was asked for: whatever was acknowledged before, it shows.
- Every item gets its own result. One that PostgreSQL refuses fails alone: a batch that fails as a
  whole is split until the culprit stands alone.
- A caller that goes away takes its item out of the queue; what is being read is not disturbed.
- A batch whose connection broke, or that takes too long, is given up: each of its callers may ask
  again.
"""

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from progressor import errors
from progressor.storage.commit.group_commit import RETRY_AFTER
from progressor.storage.postgres.pools import Connection, Pool, connection_of, translated

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)

WAITING_PER_BATCH = 32
"""How many must wait, per batch in flight, to bring in another reader at once: half a batch."""

PATIENCE_SECONDS = 0.02
"""How long a few wait for the batches in flight, before another reader comes anyway."""

GATHER_MAX = 0.005
GATHER_PER_READ = 0.0005
IDLE_TURN = 0.00005
NAP = 0.001
IDLE_TURNS = 2
"""Turns of the event loop, in a row, shorter than IDLE_TURN: it has nothing else to do."""

Read = Callable[[Connection, Sequence[Item]], Awaitable[Sequence[Result]]]
"""Read a batch in one statement and return one result per item, in the order of the items.

What may fail because of what is stored is left to the caller of `ask`: it knows whose item it is.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadBounds:
    reader_count: int = 4
    batch_max: int = 64
    waiting_max: int = 100_000


READ_BOUNDS = ReadBounds()


class GroupRead(Generic[Item, Result]):
    """One kind of read, gathered."""

    def __init__(
        self,
        *,
        name: str,
        read: Read[Item, Result],
        pool: Pool,
        statement_timeout: float,
        bounds: ReadBounds = READ_BOUNDS,
    ) -> None:
        self.name = name
        self._read = read
        self._pool = pool
        self._reader_count = bounds.reader_count
        self._batch_max = bounds.batch_max
        self._waiting_max = bounds.waiting_max
        self._statement_timeout = statement_timeout
        self._waiting: collections.deque[_Entry[Item, Result]] = collections.deque()
        self._idle: list[asyncio.Future[None]] = []
        self._busy_count = bounds.reader_count
        self._patience: asyncio.TimerHandle | None = None
        self._last_size = 0
        self._last_started_at = float("-inf")
        self._closed = False

    async def ask(self, item: Item) -> Result:
        """Return what is read for an item, some time after now.

        Cancelled, it takes the item out of the queue.

        Raises:
            OverloadedError: As many items wait as may.
            StorageUnavailableError: PostgreSQL is unreachable, or the engine is stopping.
            StorageRefusedError: PostgreSQL refuses the item.
        """
        if self._closed:
            raise _stopping()
        if len(self._waiting) >= self._waiting_max:
            raise errors.OverloadedError(
                f"{self._waiting_max} reads are already waiting", RETRY_AFTER
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._idle:
            if len(self._waiting) > WAITING_PER_BATCH * self._busy_count:
                self._wake()
            elif self._patience is None:
                self._patience = loop.call_later(PATIENCE_SECONDS, self._lose_patience)
        return await future

    async def run(self) -> None:
        """Read until `close`, and then until no caller is waiting.

        If it is cancelled, waiting callers get an error saying that the engine is stopping.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._reader_count):
                    group.create_task(self._run_reader(), name=f"{self.name} reader {number}")
        finally:
            self._closed = True
            _abandon(self._waiting)
            if self._patience is not None:
                self._patience.cancel()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._wake()

    def _wake(self) -> None:
        # It counts as busy from here on, so that one crowd does not wake all.
        self._busy_count += 1
        self._idle.pop().set_result(None)

    def _lose_patience(self) -> None:
        """Bring in another reader where batches are in flight and none has left for long."""
        self._patience = None
        if not (self._idle and self._waiting):
            return
        loop = asyncio.get_running_loop()
        left = self._last_started_at + PATIENCE_SECONDS - loop.time()
        if left > 0:
            self._patience = loop.call_later(left, self._lose_patience)
        else:
            self._wake()

    async def _run_reader(self) -> None:
        while self._waiting or not self._closed:
            if not self._waiting:
                await self._rest()
                continue
            try:
                await self._empty()
            except errors.StorageUnavailableError as error:
                # No connection is available, so the other waiting callers would fail as well.
                self._give_up(self._waiting, error)
                self._waiting.clear()

    async def _rest(self) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._busy_count -= 1
        self._idle.append(woken)
        await woken

    async def _empty(self) -> None:
        while self._waiting:
            async with connection_of(self._pool, reads_only=True) as connection:
                while batch := await self._gather():
                    try:
                        await self._answer(connection, batch)
                    except errors.StorageUnavailableError as error:
                        self._give_up(batch, error)
                        break  # to the next connection
                    finally:
                        _abandon(batch)

    async def _gather(self) -> "list[_Entry[Item, Result]]":
        """Take what waits, having let it grow where there is a crowd.

        The event loop of a busy replica takes up one request after the other, and the first one
        would leave alone. So a batch starts no sooner than a pause after the one before; the pause
        grows with the crowd, and ends as soon as the loop has nothing else to do: then all have
        come that will come soon. The lone reader pays nothing.
        """
        time = asyncio.get_running_loop().time
        crowd = self._last_size + len(self._waiting)
        end = self._last_started_at + min(GATHER_MAX, crowd * GATHER_PER_READ)
        idle_turns, now = 0, time()
        while now < end and idle_turns < IDLE_TURNS and len(self._waiting) < self._batch_max:
            await asyncio.sleep(0)
            begun, now = now, time()
            if now - begun < IDLE_TURN:
                idle_turns += 1
            else:
                # To look on at every turn of a busy loop would itself keep it busy.
                idle_turns = 0
                await asyncio.sleep(NAP)
                now = time()
        batch = self._take()
        self._last_size, self._last_started_at = len(batch), now
        return batch

    def _take(self) -> "list[_Entry[Item, Result]]":
        """Take entries from the front, and drop those whose callers are gone."""
        batch: list[_Entry[Item, Result]] = []
        while self._waiting and len(batch) < self._batch_max:
            entry = self._waiting.popleft()
            if not entry[1].done():
                batch.append(entry)
        return batch

    async def _answer(
        self, connection: Connection, batch: "Sequence[_Entry[Item, Result]]"
    ) -> None:
        try:
            results = await self._read_within_time(connection, [item for item, _ in batch])
        except errors.StorageRefusedError as error:
            if len(batch) == 1:
                facts = {"read": self.name, "why": str(error)}
                _log.error("item rejected", extra=facts, exc_info=error.__cause__)
                _fail(batch, error)
                return
            middle = len(batch) // 2
            await self._answer(connection, batch[:middle])
            await self._answer(connection, batch[middle:])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    async def _read_within_time(
        self, connection: Connection, items: Sequence[Item]
    ) -> Sequence[Result]:
        try:
            with translated():
                async with asyncio.timeout(self._statement_timeout):
                    return await self._read(connection, items)
        except errors.StorageError:
            raise
        except Exception as error:
            # A value that no column can hold, or a row that cannot be understood: one item's.
            raise errors.StorageRefusedError(f"{type(error).__name__}: {error}") from error

    def _give_up(
        self, entries: "Iterable[_Entry[Item, Result]]", error: errors.StorageUnavailableError
    ) -> None:
        _log.warning("batch not read", extra={"read": self.name, "why": error.why})
        _fail(entries, error)


_Entry = tuple[Item, asyncio.Future[Result]]


def _fail(entries: "Iterable[_Entry[Item, Result]]", error: errors.StorageError) -> None:
    for _, future in entries:
        if not future.done():
            future.set_exception(error)


def _abandon(entries: "Iterable[_Entry[Item, Result]]") -> None:
    for _, future in entries:
        if not future.done():
            future.set_exception(_stopping())


def _stopping() -> errors.StorageUnavailableError:
    return errors.StorageUnavailableError("the engine is stopping")
