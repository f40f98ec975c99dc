"""Invariants of group commit, over random crowds and random faults."""

import asyncio
import collections
import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from typing import cast

import psycopg
from hypothesis import example, given
from hypothesis import strategies as st

from progressor import errors
from progressor.domain.processes.process import ProcessKey
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import (
    GATHER_SPLIT,
    CommitContext,
    GroupCommit,
    Insistence,
    WriteKind,
)
from progressor.storage.postgres.pools import Connection, Pool
from tests.support.builders import make_key
from tests.support.runtime.memory import MemoryPool
from tests.support.runtime.virtual_time import in_virtual_time

PROCESS_IDS = "abcdefghijklmnop"
TIMEOUT_SECONDS = 10.0
LOCK_SECONDS = 0.3


class Fault(enum.Enum):
    """What happens to one write."""

    NONE = enum.auto()
    CUT_BEFORE = enum.auto()
    CUT_AFTER = enum.auto()
    UNDONE = enum.auto()
    HANGS = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A write to one of a few processes; its caller may stop waiting."""

    process_id: str
    pause: float
    poisoned: bool
    abandoned: bool
    conflict_key: str | None
    number: int = 0


def conflict_key_of(item: Item, *, shared: bool) -> tuple[str, ...] | None:
    """Return what a batch may hold once: a process, or where it may be shared, a key of it."""
    if not shared:
        return (item.process_id,)
    return None if item.conflict_key is None else (item.process_id, item.conflict_key)


class Database:
    """Applies what it is sent, each item once, unless a fault is due."""

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        locks: Mapping[str, float],
        named_by: str,
        shared: bool,
        batch_max: int,
    ) -> None:
        self.locks = locks
        """Until when another session holds a process locked."""
        self.named_by = named_by
        """Whether it is found by its process, by the row that is locked, or not at all."""
        self.batch_max = batch_max
        self.shared = shared
        self.faults = collections.deque(faults)
        self.applied: list[Item] = []
        self.under_way: list[tuple[Connection, set[str]]] = []

    async def write(
        self, connection: Connection, items: Sequence[Item], again: bool
    ) -> Sequence[int]:
        assert 0 < len(items) <= self.batch_max
        conflict_keys = [
            key for item in items if (key := conflict_key_of(item, shared=self.shared))
        ]
        assert len(set(conflict_keys)) == len(conflict_keys), "two conflicting items in one batch"
        processes = {item.process_id for item in items}
        for _, others in self.under_way:
            assert not processes & others, "a process in two batches under way"
        behind = [flight for flight in self.under_way if flight[0] is connection]
        assert len(behind) < 2
        assert not (behind and again), "sent again behind another"
        self.under_way.append((connection, processes))
        try:
            return await self._write(items, again=again)
        finally:
            self.under_way.remove((connection, processes))

    async def find_locked(
        self, _connection: Connection, keys: Sequence[ProcessKey]
    ) -> frozenset[ProcessKey]:
        if self.named_by != "process":
            return frozenset()
        return frozenset(key for key in keys if self._is_locked(key.process_id))

    async def find_blocked(
        self, _connection: Connection, items: Sequence[Item], _row: tuple[str, str] | None
    ) -> Mapping[int, str]:
        if self.named_by != "row":
            return {}
        return {
            place: item.process_id
            for place, item in enumerate(items)
            if self._is_locked(item.process_id)
        }

    def _is_locked(self, process_id: str) -> bool:
        return self.locks.get(process_id, 0.0) > asyncio.get_running_loop().time()

    async def _write(self, items: Sequence[Item], *, again: bool) -> Sequence[int]:
        fault = self.faults.popleft() if self.faults else Fault.NONE
        await self._begin(fault)
        if any(self._is_locked(item.process_id) for item in items):
            await asyncio.sleep(LOCK_SECONDS)
            raise psycopg.errors.LockNotAvailable("locked")
        if any(item.poisoned for item in items):
            raise psycopg.DataError("poisoned")
        for item in items:
            assert item not in self.applied or again, "sent twice without a word"
            if item not in self.applied:
                self.applied.append(item)
        if fault is Fault.CUT_AFTER:
            raise psycopg.OperationalError("cut after")
        return [item.number for item in items]

    @staticmethod
    async def _begin(fault: Fault) -> None:
        await asyncio.sleep(0.001)
        match fault:
            case Fault.CUT_BEFORE:
                raise psycopg.OperationalError("cut before")
            case Fault.UNDONE:
                raise psycopg.errors.SerializationFailure("undone")
            case Fault.HANGS:
                await asyncio.get_running_loop().create_future()
            case _:
                pass


ITEMS = st.lists(
    st.builds(
        Item,
        # Most of them crowd on a few; the others are many enough to fill a batch.
        process_id=st.one_of(st.sampled_from(PROCESS_IDS[:5]), st.sampled_from(PROCESS_IDS)),
        pause=st.sampled_from([0.0, 0.0, 0.0005, 0.01, 2.0]),
        poisoned=st.sampled_from([False, False, False, True]),
        abandoned=st.sampled_from([False, False, True]),
        conflict_key=st.sampled_from([None, "x", "y"]),
    ),
    max_size=40,
)
LOCKS = st.dictionaries(
    st.sampled_from(PROCESS_IDS[:7]), st.sampled_from([0.05, 0.35, 1.0, 5.0, 30.0]), max_size=3
)
FAULTS = st.lists(st.sampled_from(Fault), max_size=8)


def commit_to(
    database: Database,
    pool: MemoryPool,
    insistence: Insistence,
    *,
    shards: int,
    gather: float,
    batch_max: int,
) -> GroupCommit[Item, int]:
    kind = WriteKind(
        name="test",
        write=database.write,
        key=lambda item: make_key(
            item.process_id, namespace=item.process_id if item.process_id < "d" else "others"
        ),
        conflict_key=(lambda item: conflict_key_of(item, shared=True)) if database.shared else None,
        insistence=insistence,
        find_locked=database.find_locked,
        find_blocked=database.find_blocked,
    )
    return GroupCommit(
        kind,
        pool=cast("Pool", pool),
        settings=Commit(
            shard_count=shards,
            batch_max=batch_max,
            queue_max=1000,
            gather=dt.timedelta(seconds=gather),
        ),
        statement_timeout=dt.timedelta(seconds=TIMEOUT_SECONDS),
        context=CommitContext(step_count=lambda: 4 * batch_max),
    )


def a_write(process_id: str, pause: float = 0.0) -> Item:
    return Item(process_id, pause, poisoned=False, abandoned=False, conflict_key=None)


# What was sent before stood in the line behind what had been locked and never was.
@example(
    items=[*[a_write("a")] * 3, a_write("b"), a_write("a", 2.0), *[a_write("a")] * 4],
    faults=[Fault.NONE, Fault.HANGS],
    locks={"a": 0.35},
    named_by="process",
    insistence=Insistence.INSIST,
    shards=1,
    outages=0,
    gather=0.0,
    shared=False,
    batch_max=GATHER_SPLIT,
)
@given(
    items=ITEMS,
    faults=FAULTS,
    locks=LOCKS,
    named_by=st.sampled_from(["process", "row", "nothing"]),
    insistence=st.sampled_from(Insistence),
    shards=st.integers(1, 3),
    outages=st.integers(0, 2),
    gather=st.sampled_from([0.0, 0.005]),
    shared=st.booleans(),
    batch_max=st.sampled_from([3, GATHER_SPLIT]),
)
@in_virtual_time
async def test_every_item_has_one_result_and_no_fault_spreads(
    *,
    items: list[Item],
    faults: list[Fault],
    locks: dict[str, float],
    named_by: str,
    insistence: Insistence,
    shards: int,
    outages: int,
    gather: float,
    shared: bool,
    batch_max: int,
) -> None:
    database = Database(faults, locks=locks, named_by=named_by, shared=shared, batch_max=batch_max)
    pool = MemoryPool()
    pool.outages = outages
    commit = commit_to(
        database, pool, insistence, shards=shards, gather=gather, batch_max=batch_max
    )
    numbered = [dataclasses.replace(item, number=number) for number, item in enumerate(items)]
    futures: list[asyncio.Future[int]] = []
    running = asyncio.ensure_future(commit.run())
    for item in numbered:
        await asyncio.sleep(item.pause)
        futures.append(commit.submit(item))
        if item.abandoned:
            futures[-1].cancel()
    commit.close()
    await running

    assert all(future.done() for future in futures)
    for item, future in zip(numbered, futures, strict=True):
        if not item.abandoned:
            _check_result(database, item, future, insistence)
    for process_id in PROCESS_IDS:
        written = [item.number for item in database.applied if item.process_id == process_id]
        assert written == sorted(written), "written out of order"
    if insistence is Insistence.INSIST:
        wanted = {item.number for item in numbered if not item.poisoned}
        assert sorted(item.number for item in database.applied) == sorted(wanted)


def _check_result(
    database: Database, item: Item, future: "asyncio.Future[int]", insistence: Insistence
) -> None:
    error = future.exception()
    if error is None:
        assert future.result() == item.number
        assert database.applied.count(item) == 1
    elif isinstance(error, errors.StorageLockedError):
        assert item.process_id in database.locks, "a lock was reported that no one held"
    elif isinstance(error, errors.StorageRefusedError):
        assert item.poisoned, "refused with its neighbour"
    else:
        assert isinstance(error, errors.StorageUnavailableError)
        assert insistence is Insistence.GIVE_UP
