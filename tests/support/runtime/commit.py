"""A group commit over a scripted write, to be run in virtual time."""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import psycopg

from progressor.domain.processes.process import ProcessKey
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import CommitContext, GroupCommit, Insistence, WriteKind
from progressor.storage.postgres.backoff import steady
from progressor.storage.postgres.pools import Connection, Pool, before_sending
from tests.support.builders import make_key
from tests.support.runtime.memory import MemoryPool
from tests.support.runtime.virtual_time import settled

TIMEOUT_SECONDS = 10.0
GATHER_SECONDS = 0.01
WRITE_SECONDS = 0.002
DEFAULTS: Mapping[str, Any] = {
    "shard_count": 1, "batch_max": 4, "queue_max": 100, "gather": dt.timedelta(),
}  # fmt: skip
AWAY = psycopg.OperationalError
LOCKED = psycopg.errors.LockNotAvailable
CONFLICT = psycopg.errors.DeadlockDetected
REFUSED = psycopg.DataError


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    number: int
    process_id: str
    poisoned: bool = False
    conflict_key: str | None = None
    gate: str | None = None

    @property
    def key(self) -> ProcessKey:
        return make_key(self.process_id)


class Harness:
    """A group commit over a scripted write; an error in the script is raised by one write."""

    def __init__(
        self,
        insistence: Insistence = Insistence.GIVE_UP,
        *,
        seconds: float = 0.0,
        key: Callable[[Item], ProcessKey] = lambda item: item.key,
        conflict_key: Callable[[Item], Hashable | None] | None = None,
        size: Callable[[Item], int] = lambda _: 0,
        step_count: Callable[[], int] = lambda: 0,
        jitter: Callable[[], float] = steady,
        **settings: Any,
    ) -> None:
        self.seconds = seconds
        self.pool = MemoryPool()
        self.script: collections.deque[type[Exception] | None] = collections.deque()
        self.batches: list[tuple[int, ...]] = []
        self.again: list[bool] = []
        self.under_way = 0
        self.under_way_max: list[int] = []
        """How many were under way when each batch set out, itself among them."""
        self.times: list[float] = []
        self.told: list[tuple[str, int, float]] = []
        self.locked: set[str] = set()
        """Processes that another transaction holds."""
        self.locked_gates: set[str | None] = set()
        """Gates that another transaction holds, and of these those that PostgreSQL names."""
        self.named_gates: set[str | None] = set()
        self.asked: list[tuple[str, ...]] = []
        self.unsendable: dict[int, type[Exception]] = {}
        """Numbers of items whose columns cannot be built."""
        self.open = asyncio.Event()
        self.open.set()
        kind = WriteKind(
            name="test",
            write=self._write,
            key=key,
            conflict_key=conflict_key,
            size=size,
            insistence=insistence,
            find_locked=self._find_locked,
            find_blocked=self._find_blocked,
        )
        self.commit: GroupCommit[Item, int] = GroupCommit(
            kind,
            pool=cast("Pool", self.pool),
            settings=Commit(**{**DEFAULTS, **settings}),
            statement_timeout=dt.timedelta(seconds=TIMEOUT_SECONDS),
            context=CommitContext(
                step_count=step_count,
                jitter=jitter,
                on_batch=lambda name, size, wait: self.told.append((name, size, wait)),
                now=asyncio.get_running_loop().time,
            ),
        )

    def submit(self, *items: Item) -> list["asyncio.Future[int]"]:
        futures = [self.commit.submit(item) for item in items]
        for future in futures:
            # Not every test asks how every item ended.
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return futures

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.commit.run())
        await settled()
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _write(
        self, _connection: Connection, items: Sequence[Item], again: bool
    ) -> Sequence[int]:
        with before_sending():
            for item in items:
                if item.number in self.unsendable:
                    raise self.unsendable[item.number]
        self.batches.append(tuple(item.number for item in items))
        self.under_way += 1
        self.under_way_max.append(self.under_way)
        try:
            return await self._written(items, again=again)
        finally:
            self.under_way -= 1

    async def _written(self, items: Sequence[Item], *, again: bool) -> Sequence[int]:
        self.again.append(again)
        self.times.append(asyncio.get_running_loop().time())
        await self.open.wait()
        if self.seconds:
            await asyncio.sleep(self.seconds)
        answer = self.script.popleft() if self.script else None
        if answer is not None:
            raise answer
        if any(item.process_id in self.locked for item in items):
            raise LOCKED
        if any(item.gate in self.locked_gates for item in items):
            raise LOCKED
        if any(item.poisoned for item in items):
            raise REFUSED
        return [10 * item.number for item in items]

    async def _find_blocked(
        self, _connection: Connection, items: Sequence[Item], _row: tuple[str, str] | None
    ) -> Mapping[int, str]:
        return {
            place: item.gate
            for place, item in enumerate(items)
            if item.gate in self.named_gates and item.gate is not None
        }

    async def _find_locked(
        self, _connection: Connection, keys: Sequence[ProcessKey]
    ) -> frozenset[ProcessKey]:
        self.asked.append(tuple(key.process_id for key in keys))
        return frozenset(key for key in keys if key.process_id in self.locked)


def crowd(*numbers: int) -> list[Item]:
    return [Item(number, f"p{number}") for number in numbers]
