"""Group commit: what waits at the moment becomes one write."""

import asyncio

import pytest

from progressor import errors
from progressor.storage.commit.group_commit import Insistence, Waiting
from tests.support.builders import make_key
from tests.support.commit_bench import Bench, Item, crowd
from tests.support.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_a_lone_item_is_written_at_once() -> None:
    bench = Bench()
    async with bench.running():
        (future,) = bench.submit(Item(1, "p1"))

        assert await future == 10

    assert asyncio.get_running_loop().time() == 0
    assert bench.told == [("test", 1, 0.0)]


@in_virtual_time
async def test_what_comes_while_a_batch_is_in_flight_makes_the_next_one() -> None:
    bench = Bench()
    bench.open.clear()
    async with bench.running():
        first = bench.submit(*crowd(1))
        await settled()
        others = bench.submit(*crowd(2, 3))
        await settled()
        waiting = bench.commit.waiting.count
        bench.open.set()
        await asyncio.wait([*first, *others])

    assert waiting == 2
    assert bench.batches == [(1,), (2, 3)]


@in_virtual_time
async def test_a_batch_tells_how_long_its_first_item_has_waited() -> None:
    bench = Bench()
    bench.open.clear()
    async with bench.running():
        first = bench.submit(*crowd(1))
        await asyncio.sleep(1)
        second = bench.submit(*crowd(2))
        await asyncio.sleep(0.5)
        third = bench.submit(*crowd(3))
        await asyncio.sleep(0.5)
        waiting = bench.commit.waiting
        bench.open.set()
        await asyncio.wait([*first, *second, *third])

    assert waiting == Waiting("test", 2, 0)
    assert bench.told == [("test", 1, 0.0), ("test", 2, 1.0)]


@in_virtual_time
async def test_a_batch_holds_no_more_than_it_may() -> None:
    bench = Bench(batch_max=2)
    futures = bench.submit(*crowd(1, 2, 3))
    async with bench.running():
        await asyncio.wait(futures)

    assert bench.batches == [(1, 2), (3,)]


@in_virtual_time
async def test_a_batch_holds_one_item_per_process_and_keeps_their_order() -> None:
    bench = Bench()
    futures = bench.submit(Item(1, "a"), Item(2, "a"), Item(3, "b"), Item(4, "a"))
    async with bench.running():
        await asyncio.wait(futures)

    assert bench.batches == [(1, 3), (2,), (4,)]


@in_virtual_time
async def test_a_crowd_on_one_process_does_not_hold_up_its_neighbours_for_long() -> None:
    bench = Bench(batch_max=2)
    futures = bench.submit(*(Item(number, "a") for number in range(1, 12)), Item(99, "b"))
    async with bench.running():
        await asyncio.wait(futures)

    position = next(index for index, batch in enumerate(bench.batches) if 99 in batch)
    assert position == 4


@in_virtual_time
async def test_processes_in_other_lanes_are_not_held_up() -> None:
    bench = Bench(shard_count=2)
    lanes = {number: make_key(f"p{number}").slot % 2 for number in range(1, 20)}
    one = next(number for number, lane in lanes.items() if lane == 0)
    other = next(number for number, lane in lanes.items() if lane == 1)
    bench.open.clear()
    async with bench.running():
        bench.submit(*crowd(one, other))
        await settled()

    assert sorted(bench.batches) == sorted([(one,), (other,)])


@in_virtual_time
async def test_a_full_line_refuses_requests() -> None:
    bench = Bench(queue_max=2)
    bench.submit(*crowd(1, 2))

    with pytest.raises(errors.OverloadedError) as caught:
        bench.submit(*crowd(3))

    assert caught.value.retry_after.total_seconds() > 0
    assert bench.commit.waiting.count == 2


@in_virtual_time
async def test_what_is_decided_is_never_refused() -> None:
    bench = Bench(Insistence.INSIST, queue_max=2)

    bench.submit(*crowd(1, 2, 3))

    assert bench.commit.waiting.count == 3


@in_virtual_time
async def test_a_closed_line_takes_nobody() -> None:
    bench = Bench()
    bench.commit.close()

    with pytest.raises(errors.StorageUnavailableError):
        bench.submit(*crowd(1))


@in_virtual_time
async def test_what_is_in_line_on_closing_is_written() -> None:
    bench = Bench()
    futures = bench.submit(*crowd(1, 2))
    bench.commit.close()

    await bench.commit.run()

    assert [future.result() for future in futures] == [10, 20]


@in_virtual_time
async def test_closing_ends_lanes_that_wait() -> None:
    bench = Bench(shard_count=3)
    running = asyncio.ensure_future(bench.commit.run())
    await settled()

    bench.commit.close()

    await running
