"""Group commit: what waits at the moment becomes one write."""

import asyncio

import pytest

from progressor import errors
from progressor.storage.commit.group_commit import Insistence, Waiting
from tests.support.builders import make_key
from tests.support.runtime.commit import Harness, Item, crowd
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_what_comes_while_a_batch_is_in_flight_makes_the_next_one() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running():
        first = harness.submit(*crowd(1))
        await settled()
        others = harness.submit(*crowd(2, 3))
        await settled()
        waiting = harness.commit.waiting.count
        harness.open.set()
        await asyncio.wait([*first, *others])

    assert waiting == 2
    assert harness.batches == [(1,), (2, 3)]


@in_virtual_time
async def test_a_batch_tells_how_long_its_first_item_has_waited() -> None:
    harness = Harness()
    harness.open.clear()
    async with harness.running():
        first = harness.submit(*crowd(1))
        await asyncio.sleep(1)
        second = harness.submit(*crowd(2))
        await asyncio.sleep(0.5)
        third = harness.submit(*crowd(3))
        await asyncio.sleep(0.5)
        waiting = harness.commit.waiting
        harness.open.set()
        await asyncio.wait([*first, *second, *third])

    assert waiting == Waiting("test", 2, 0)
    assert harness.told == [("test", 1, 0.0), ("test", 2, 1.0)]


@in_virtual_time
async def test_a_batch_holds_no_more_than_it_may() -> None:
    harness = Harness(batch_max=2)
    futures = harness.submit(*crowd(1, 2, 3))
    async with harness.running():
        await asyncio.wait(futures)

    assert harness.batches == [(1, 2), (3,)]


@in_virtual_time
async def test_a_batch_holds_one_item_per_process_and_keeps_their_order() -> None:
    harness = Harness()
    futures = harness.submit(Item(1, "a"), Item(2, "a"), Item(3, "b"), Item(4, "a"))
    async with harness.running():
        await asyncio.wait(futures)

    assert harness.batches == [(1, 3), (2,), (4,)]


@in_virtual_time
async def test_a_crowd_on_one_process_does_not_hold_up_its_neighbours_for_long() -> None:
    harness = Harness(batch_max=2)
    futures = harness.submit(*(Item(number, "a") for number in range(1, 12)), Item(99, "b"))
    async with harness.running():
        await asyncio.wait(futures)

    position = next(index for index, batch in enumerate(harness.batches) if 99 in batch)
    assert position == 4


@in_virtual_time
async def test_processes_in_other_lanes_are_not_held_up() -> None:
    harness = Harness(shard_count=2)
    lanes = {number: make_key(f"p{number}").slot % 2 for number in range(1, 20)}
    one = next(number for number, lane in lanes.items() if lane == 0)
    other = next(number for number, lane in lanes.items() if lane == 1)
    harness.open.clear()
    async with harness.running():
        harness.submit(*crowd(one, other))
        await settled()

    assert sorted(harness.batches) == sorted([(one,), (other,)])


@in_virtual_time
async def test_a_full_line_refuses_requests() -> None:
    harness = Harness(queue_max=2)
    harness.submit(*crowd(1, 2))

    with pytest.raises(errors.OverloadedError) as caught:
        harness.submit(*crowd(3))

    assert caught.value.retry_after.total_seconds() > 0
    assert harness.commit.waiting.count == 2


@in_virtual_time
async def test_a_settlement_is_never_refused() -> None:
    harness = Harness(Insistence.INSIST, queue_max=2)

    harness.submit(*crowd(1, 2, 3))

    assert harness.commit.waiting.count == 3


@in_virtual_time
async def test_a_closed_group_accepts_nothing() -> None:
    harness = Harness()
    harness.commit.close()

    with pytest.raises(errors.StorageUnavailableError):
        harness.submit(*crowd(1))


@in_virtual_time
async def test_queued_items_are_written_on_closing() -> None:
    harness = Harness()
    futures = harness.submit(*crowd(1, 2))
    harness.commit.close()

    await harness.commit.run()

    assert [future.result() for future in futures] == [10, 20]
