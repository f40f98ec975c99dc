"""Group read: what is asked for at the moment becomes one read."""

import asyncio
import collections
import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import psycopg
import pytest

from progressor import errors
from progressor.storage.commit import group_read
from progressor.storage.commit.group_read import GroupRead, ReadBounds
from progressor.storage.postgres.pools import Connection, Pool
from tests.support.runtime.memory import MemoryPool
from tests.support.runtime.virtual_time import in_virtual_time, settled

TIMEOUT_SECONDS = 10.0
AWAY = psycopg.OperationalError
REFUSED = psycopg.DataError


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """Something to read."""

    number: int
    poison: type[Exception] | None = None


class Harness:
    """A group read over a scripted statement; an error in the script is raised by one of them."""

    def __init__(self, **fields: Any) -> None:
        self.pool = MemoryPool()
        self.script: collections.deque[type[Exception] | None] = collections.deque()
        self.batches: list[tuple[int, ...]] = []
        self.times: list[float] = []
        self.in_flight = 0
        self.open = asyncio.Event()
        self.open.set()
        defaults: dict[str, int] = {"reader_count": 1, "batch_max": 4, "waiting_max": 100}
        self.reads: GroupRead[Item, int | None] = GroupRead(
            name="test",
            read=self._read,
            pool=cast("Pool", self.pool),
            statement_timeout=TIMEOUT_SECONDS,
            bounds=ReadBounds(**defaults | fields),
        )

    def ask(self, *items: Item) -> list["asyncio.Task[int | None]"]:
        return [asyncio.ensure_future(self.reads.ask(item)) for item in items]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        running = asyncio.ensure_future(self.reads.run())
        await settled()
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _read(self, _connection: Connection, items: Sequence[Item]) -> Sequence[int | None]:
        self.batches.append(tuple(item.number for item in items))
        self.times.append(asyncio.get_running_loop().time())
        self.in_flight += 1
        try:
            await self.open.wait()
        finally:
            self.in_flight -= 1
        answer = self.script.popleft() if self.script else None
        if answer is not None:
            raise answer
        for item in items:
            if item.poison is not None:
                raise item.poison
        return [10 * item.number if item.number else None for item in items]


def crowd(*numbers: int) -> list[Item]:
    return [Item(number) for number in numbers]


async def ends(asked: Sequence["asyncio.Task[int | None]"]) -> list[object]:
    """Return each one's result, or the class of its error."""
    await asyncio.wait(asked)
    return [type(each.exception()) if each.exception() else each.result() for each in asked]


@in_virtual_time
async def test_what_is_asked_at_once_is_one_batch_and_each_gets_its_own() -> None:
    harness = Harness()
    async with harness.running():
        found = await ends(harness.ask(*crowd(1, 0, 3)))

    assert (found, harness.batches) == ([10, None, 30], [(1, 0, 3)])


@in_virtual_time
async def test_what_comes_while_a_batch_is_in_flight_makes_the_next_one() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running():
        first = harness.ask(*crowd(1))
        await settled()
        others = harness.ask(*crowd(2, 3))
        await settled()
        harness.open.set()
        await ends([*first, *others])

    assert harness.batches == [(1,), (2, 3)]


@in_virtual_time
async def test_a_batch_holds_no_more_than_it_may() -> None:
    harness = Harness(batch_max=2)
    async with harness.running():
        await ends(harness.ask(*crowd(1, 2, 3)))

    assert harness.batches == [(1, 2), (3,)]


@in_virtual_time
async def test_a_busy_event_loop_lets_a_batch_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_read, "IDLE_TURN", -1.0)
    harness = Harness()
    async with harness.running():
        await ends(harness.ask(*crowd(1, 2)))
        before = len(harness.batches)
        late = harness.ask(Item(3))
        for _ in range(20):
            await asyncio.sleep(0)
        late += harness.ask(Item(4), Item(5), Item(6))
        await ends(late)

    assert harness.batches[before:] == [(3, 4, 5, 6)]


@in_virtual_time
async def test_patience_counts_from_the_last_batch_that_left() -> None:
    harness = Harness(reader_count=2)
    harness.open.clear()
    half = group_read.PATIENCE_SECONDS / 2
    async with harness.running():
        asked = harness.ask(Item(1))
        await settled()
        asked += harness.ask(Item(2))
        await asyncio.sleep(half)
        harness.open.set()
        await settled()
        harness.open.clear()
        asked += harness.ask(Item(3))
        await settled()
        asked += harness.ask(Item(4))
        await asyncio.sleep(4 * half)
        harness.open.set()
        await ends(asked)

    assert harness.batches == [(1,), (2,), (3,), (4,)]
    assert harness.times[-1] - harness.times[-2] == pytest.approx(group_read.PATIENCE_SECONDS)


@in_virtual_time
async def test_patience_ends_in_nothing_where_all_were_read_meanwhile() -> None:
    harness = Harness(reader_count=2)
    async with harness.running():
        await ends(harness.ask(*crowd(1, 2)))
        await asyncio.sleep(2 * group_read.PATIENCE_SECONDS)

    assert harness.batches == [(1, 2)]


@in_virtual_time
@pytest.mark.parametrize("poison", [REFUSED, struct.error, UnicodeError, OverflowError])
async def test_a_poisoned_item_fails_alone(poison: type[Exception]) -> None:
    harness = Harness()
    async with harness.running():
        found = await ends(harness.ask(Item(1), Item(2, poison), Item(3), Item(4)))

    assert found == [10, errors.StorageRefusedError, 30, 40]


@in_virtual_time
async def test_a_caller_that_went_away_is_not_read_for() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running():
        asked = harness.ask(Item(1))
        await settled()
        asked += harness.ask(*crowd(2, 3))
        await settled()
        asked[1].cancel()
        harness.open.set()
        await asyncio.wait(asked)

    assert harness.batches == [(1,), (3,)]


@in_virtual_time
async def test_a_caller_that_goes_away_does_not_disturb_its_batch() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running():
        asked = harness.ask(*crowd(1, 2))
        await settled()
        asked[0].cancel()
        await settled()
        harness.open.set()

        assert await asked[1] == 20

    assert harness.batches == [(1, 2)]


@in_virtual_time
async def test_a_broken_connection_fails_its_batch_and_no_other() -> None:
    harness = Harness(batch_max=2)
    harness.script.append(AWAY)
    async with harness.running():
        found = await ends(harness.ask(*crowd(1, 2, 3)))

    assert found == [errors.StorageUnavailableError, errors.StorageUnavailableError, 30]


@in_virtual_time
async def test_without_a_connection_all_that_wait_are_told() -> None:
    harness = Harness(batch_max=2)
    harness.pool.outages = 1
    async with harness.running():
        found = await ends(harness.ask(*crowd(1, 2, 3)))
        again = await harness.reads.ask(Item(4))

    assert found == [errors.StorageUnavailableError] * 3
    assert (harness.batches, again) == ([(4,)], 40)


@in_virtual_time
async def test_a_batch_that_takes_too_long_is_given_up() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running():
        with pytest.raises(errors.StorageUnavailableError, match="timed out"):
            await harness.reads.ask(Item(1))

    assert asyncio.get_running_loop().time() == TIMEOUT_SECONDS


@in_virtual_time
async def test_waiting_readers_are_bounded() -> None:
    harness = Harness(waiting_max=2)
    harness.open.clear()
    async with harness.running():
        asked = harness.ask(Item(1))
        await settled()
        asked += harness.ask(*crowd(2, 3, 4))
        await settled()
        harness.open.set()

        assert await ends(asked) == [10, 20, 30, errors.OverloadedError]


@in_virtual_time
async def test_closing_finishes_waiting_reads_and_accepts_no_more() -> None:
    harness = Harness(reader_count=2)
    harness.open.clear()
    async with harness.running() as running:
        asked = harness.ask(Item(1))
        await settled()
        asked += harness.ask(Item(2))
        await settled()
        harness.reads.close()
        harness.open.set()
        found = await ends(asked)
        await running
        with pytest.raises(errors.StorageUnavailableError, match="stopping"):
            await harness.reads.ask(Item(3))

    assert found == [10, 20]


@in_virtual_time
async def test_no_caller_waits_for_a_cancelled_reader() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running() as running:
        asked = harness.ask(Item(1))
        await settled()
        asked += harness.ask(Item(2))
        await settled()
        running.cancel()

        assert await ends(asked) == [errors.StorageUnavailableError] * 2
