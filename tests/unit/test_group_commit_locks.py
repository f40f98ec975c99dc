"""Group commit where another transaction holds a process locked: nobody else waits for it."""

import asyncio

import pytest

from progressor import errors
from progressor.storage.group_commit import (
    CONFLICT_ATTEMPTS_MAX,
    Insistence,
)
from progressor.storage.lane import ASIDE_SECONDS
from tests.support.commit_bench import AWAY, LOCKED, TIMEOUT_SECONDS, Bench, Item, crowd
from tests.support.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_an_item_whose_process_is_locked_waits_beside_the_line_until_it_is_let_go() -> None:
    bench = Bench()
    bench.locked.add("p2")
    async with bench.running():
        one, two, three = bench.submit(*crowd(1, 2, 3))
        await asyncio.wait([one, three])
        assert not two.done()
        bench.locked.clear()

        assert await two == 20

    assert bench.batches == [(1, 2, 3), (1, 3), (2,)]
    assert asyncio.get_running_loop().time() == pytest.approx(ASIDE_SECONDS)
    assert not any(bench.again)


@in_virtual_time
async def test_what_comes_for_a_locked_process_waits_behind_and_costs_nobody_a_write() -> None:
    bench = Bench()
    bench.locked.add("a")
    async with bench.running():
        first = bench.submit(Item(1, "a"))
        await settled()
        later = bench.submit(Item(2, "a"), Item(3, "b"), Item(4, "a"))
        await asyncio.wait({later[1]})
        waiting = bench.commit.waiting_count
        bench.locked.clear()
        await asyncio.wait([*first, *later])

    assert waiting == 3
    assert bench.batches == [(1,), (3,), (1,), (2,), (4,)]


@in_virtual_time
async def test_a_lock_that_is_gone_when_asked_for_costs_another_write() -> None:
    bench = Bench()
    bench.script.append(LOCKED)
    async with bench.running():
        futures = bench.submit(*crowd(1, 2))
        await asyncio.wait(futures)

    assert bench.batches == [(1, 2), (1, 2)]
    assert bench.asked == [("p1", "p2")]


@in_virtual_time
async def test_a_lock_that_nobody_can_name_is_an_outage_in_the_end() -> None:
    bench = Bench()
    bench.script.extend([LOCKED] * CONFLICT_ATTEMPTS_MAX)
    async with bench.running():
        (future,) = bench.submit(*crowd(1))

        with pytest.raises(errors.StorageLockedError):
            await future

    assert len(bench.batches) == CONFLICT_ATTEMPTS_MAX


@in_virtual_time
async def test_a_caller_waits_for_a_locked_process_as_long_as_for_a_statement() -> None:
    bench = Bench()
    bench.locked.add("p1")
    async with bench.running():
        (future,) = bench.submit(*crowd(1))

        with pytest.raises(errors.StorageLockedError, match="locked for 10 s"):
            await future

    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT_SECONDS, abs=1)
    assert bench.commit.waiting_count == 0
    assert bench.commit.waiting_bytes == 0


@in_virtual_time
async def test_what_is_decided_waits_for_a_locked_process_without_end_also_when_closed() -> None:
    bench = Bench(Insistence.INSIST)
    bench.locked.add("p1")
    async with bench.running():
        (future,) = bench.submit(*crowd(1))
        bench.commit.close()
        await asyncio.sleep(100 * TIMEOUT_SECONDS)
        assert not future.done()
        bench.locked.clear()

        assert await future == 10


@in_virtual_time
async def test_what_waits_for_a_lock_counts_as_waiting_and_is_refused_when_too_much() -> None:
    bench = Bench(queue_max=2)
    bench.locked.update({"p1", "p2"})
    async with bench.running():
        bench.submit(*crowd(1, 2))
        await settled()

        with pytest.raises(errors.OverloadedError):
            bench.commit.submit(Item(3, "p3"))


@in_virtual_time
async def test_an_outage_fails_those_who_wait_for_a_lock_too() -> None:
    bench = Bench()
    bench.locked.add("p1")
    async with bench.running():
        (locked,) = bench.submit(*crowd(1))
        await settled()
        bench.script.append(AWAY)
        (other,) = bench.submit(*crowd(2))
        await asyncio.wait([locked, other])

    assert isinstance(locked.exception(), errors.StorageUnavailableError)
    assert isinstance(other.exception(), errors.StorageUnavailableError)


@in_virtual_time
@pytest.mark.parametrize("insistence", Insistence)
async def test_a_line_knows_the_bytes_of_those_who_wait_for_a_lock(insistence: Insistence) -> None:
    bench = Bench(insistence, size=lambda item: item.number)
    bench.locked.add("p5")
    async with bench.running():
        futures = bench.submit(*crowd(5, 7))
        await asyncio.wait({futures[1]})
        await settled()
        waiting = bench.commit.waiting_bytes
        bench.locked.clear()
        await asyncio.wait(futures)

    assert waiting == 5
    assert bench.commit.waiting_bytes == 0
