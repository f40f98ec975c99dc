"""Group commit in a crowd: how batches fill, follow each other, and share a connection."""

import asyncio
from typing import Any

import pytest

from progressor.storage.commit.group_commit import (
    GATHER_SPLIT,
    Insistence,
)
from tests.support.builders import seconds
from tests.support.runtime.commit import AWAY, GATHER_SECONDS, WRITE_SECONDS, Harness, Item, crowd
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_a_batch_lets_itself_fill_no_longer_than_it_may() -> None:
    harness = Harness(
        gather=seconds(GATHER_SECONDS), step_count=lambda: 1000, seconds=GATHER_SECONDS / 2
    )
    async with harness.running():
        await asyncio.wait(harness.submit(*crowd(1)))
        await asyncio.wait(harness.submit(*crowd(2)))

    assert harness.times == [0, pytest.approx(GATHER_SECONDS)]


@pytest.mark.parametrize(
    ("steps", "waiting", "sizes"),
    [
        (2 * GATHER_SPLIT, 2 * GATHER_SPLIT, [GATHER_SPLIT, GATHER_SPLIT]),
        (2 * GATHER_SPLIT, 5 * GATHER_SPLIT, [4 * GATHER_SPLIT, GATHER_SPLIT]),
        (GATHER_SPLIT, GATHER_SPLIT, [GATHER_SPLIT]),
    ],
    ids=["the whole crowd", "a backlog", "a small crowd"],
)
@in_virtual_time
async def test_a_crowd_that_is_all_in_line_is_written_in_halves(
    steps: int, waiting: int, sizes: list[int]
) -> None:
    harness = Harness(
        gather=seconds(1), batch_max=128, step_count=lambda: steps, seconds=WRITE_SECONDS
    )
    async with harness.running():
        await asyncio.wait(harness.submit(*crowd(*range(waiting))))

    assert [len(batch) for batch in harness.batches] == sizes


def following(*process_ids: str, **fields: Any) -> tuple[Harness, list[Item], list[Item]]:
    """Return a harness where batches may follow each other, a batch, and one to come behind it."""
    harness = Harness(
        gather=seconds(1), batch_max=GATHER_SPLIT, step_count=lambda: 2 * GATHER_SPLIT, **fields
    )
    first = crowd(*range(GATHER_SPLIT))
    second = [Item(100 + number, process_id) for number, process_id in enumerate(process_ids)]
    return harness, first, second


def others(count: int) -> list[str]:
    return [f"other{number}" for number in range(count)]


@in_virtual_time
async def test_a_full_batch_follows_the_one_under_way() -> None:
    harness, first, second = following(*others(GATHER_SPLIT))
    harness.open.clear()
    async with harness.running():
        futures = harness.submit(*first)
        await settled()
        futures += harness.submit(*second[:-1])
        await settled()
        assert len(harness.batches) == 1, "not full yet"
        futures += harness.submit(second[-1])
        await settled()
        assert [len(batch) for batch in harness.batches] == [GATHER_SPLIT, GATHER_SPLIT]
        harness.submit(*(Item(200 + number, f"third{number}") for number in range(GATHER_SPLIT)))
        await settled()
        assert len(harness.batches) == 2, "a third behind two"

        harness.open.set()
        await asyncio.wait(futures)

    assert [future.result() for future in futures] == [
        10 * item.number for item in [*first, *second]
    ]
    assert harness.pool.lent == 1


@in_virtual_time
async def test_a_batch_in_a_small_crowd_waits_for_the_one_under_way() -> None:
    harness = Harness(gather=seconds(1), batch_max=GATHER_SPLIT, step_count=lambda: GATHER_SPLIT)
    harness.open.clear()
    async with harness.running():
        harness.submit(*crowd(*range(GATHER_SPLIT)))
        await settled()
        harness.submit(*(Item(100 + n, f"other{n}") for n in range(GATHER_SPLIT)))
        await settled()

        assert len(harness.batches) == 1


@in_virtual_time
async def test_an_item_of_a_process_under_way_does_not_follow() -> None:
    harness, first, second = following("p3", *others(GATHER_SPLIT - 1), "p5")
    harness.open.clear()
    async with harness.running():
        futures = harness.submit(*first)
        await settled()
        futures += harness.submit(*second)
        await settled()
        assert harness.batches[1] == tuple(item.number for item in second[1:-1])

        harness.open.set()
        await asyncio.wait(futures)

    assert harness.batches[2] == (second[0].number, second[-1].number)


@in_virtual_time
async def test_batches_that_broke_together_are_written_again_one_after_the_other() -> None:
    fields = {"insistence": Insistence.INSIST, "seconds": WRITE_SECONDS}
    harness, first, second = following(*others(GATHER_SPLIT), **fields)
    harness.script.extend([AWAY, AWAY])
    async with harness.running():
        futures = harness.submit(*first)
        await asyncio.sleep(WRITE_SECONDS / 2)
        futures += harness.submit(*second)
        await asyncio.wait(futures)

    one, two = (tuple(item.number for item in items) for items in (first, second))
    halves = [one[:4], one[4:] + two[:4], two[4:]]
    assert harness.batches == [one, two, *halves]
    assert harness.again == [False, False, True, True, True]
    assert harness.under_way_max == [1, 2, 1, 1, 1]


def by_conflict_key(item: Item) -> str | None:
    return item.conflict_key


@in_virtual_time
async def test_nobody_passes_an_item_of_the_same_process_that_waits_for_a_conflicting_one() -> None:
    harness = Harness(conflict_key=by_conflict_key)
    futures = harness.submit(
        Item(1, "a", conflict_key="k"),
        Item(2, "a", conflict_key="k"),
        Item(3, "a", conflict_key="other"),
        Item(4, "b"),
        Item(5, "a"),
    )
    async with harness.running():
        await asyncio.wait(futures)

    assert harness.batches == [(1, 4), (2, 3, 5)]
