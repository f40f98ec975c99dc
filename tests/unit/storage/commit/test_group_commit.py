"""Group commit: batches, their order, and how they fill where many steps run."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.storage.commit.group_commit import (
    CONFLICT_ATTEMPTS_MAX,
    GATHER_SPLIT,
    Insistence,
    Waiting,
)
from progressor.storage.commit.shard import BATCH_BYTES_MAX
from tests.support.builders import make_key, seconds
from tests.support.runtime.commit import (
    AWAY,
    GATHER_SECONDS,
    LOCKED,
    REFUSED,
    WRITE_SECONDS,
    Harness,
    Item,
    crowd,
)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Items that wait when the writes begin, what becomes of the first writes, and all writes."""

    name: str
    items: list[Item]
    script: tuple[type[Exception] | None, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batches: list[tuple[int, ...]]


INSIST = {"insistence": Insistence.INSIST}
CASES = [
    Case(
        name="a batch holds no more than it may",
        items=crowd(1, 2, 3), options={"batch_max": 2}, batches=[(1, 2), (3,)],
    ),
    Case(
        name="a batch holds no more bytes than it may",
        items=crowd(1, 2, 3, 0, 4),
        options={"size": lambda it: BATCH_BYTES_MAX // 2 if it.number else BATCH_BYTES_MAX + 1},
        batches=[(1, 2), (3,), (0,), (4,)],
    ),
    Case(
        name="a batch holds one item per process, and keeps their order",
        items=[Item(1, "a"), Item(2, "a"), Item(3, "b"), Item(4, "a")],
        batches=[(1, 3), (2,), (4,)],
    ),
    Case(
        name="no item passes one of the same process that waits for a conflicting one",
        items=[
            Item(1, "a", conflict_key="k"), Item(2, "a", conflict_key="k"),
            Item(3, "a", conflict_key="other"), Item(4, "b"), Item(5, "a"),
        ],
        options={"conflict_key": lambda it: it.conflict_key},
        batches=[(1, 4), (2, 3, 5)],
    ),
    Case(
        name="what was not written is written again in smaller and then in larger batches",
        items=crowd(*range(16)), script=(AWAY, AWAY), options={**INSIST, "batch_max": 8},
        batches=[
            tuple(range(8)), tuple(range(4)), (0, 1), (2, 3, 4, 5), tuple(range(6, 14)), (14, 15),
        ],
    ),
    Case(
        name="half a batch that is written is not written again for the other",
        items=crowd(1, 2), script=(REFUSED, None, AWAY), options=INSIST,
        batches=[(1, 2), (1,), (2,), (2,)],
    ),
    Case(
        name="a possibly transient error is retried before it counts as a refusal",
        items=crowd(1), script=(psycopg.errors.InternalError_,) * (CONFLICT_ATTEMPTS_MAX - 1),
        batches=[(1,)] * CONFLICT_ATTEMPTS_MAX,
    ),
    Case(
        name="a lock that is gone when asked for costs another write",
        items=crowd(1, 2), script=(LOCKED,), batches=[(1, 2), (1,), (2,)],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@in_virtual_time
async def test_items_are_written_in_these_batches(case: Case) -> None:
    harness = Harness(**case.options)
    harness.script.extend(case.script)
    futures = harness.submit(*case.items)
    async with harness.running():
        await asyncio.wait(futures)

    assert harness.batches == case.batches
    assert [future.result() for future in futures] == [10 * item.number for item in case.items]
    assert harness.commit.waiting == Waiting("test", 0, 0)


@in_virtual_time
async def test_a_crowd_on_one_process_does_not_hold_up_its_neighbours_for_long() -> None:
    harness = Harness(batch_max=2)
    futures = harness.submit(*(Item(number, "a") for number in range(1, 12)), Item(99, "b"))
    async with harness.running():
        await asyncio.wait(futures)

    position = next(index for index, batch in enumerate(harness.batches) if 99 in batch)
    assert position == 4


@in_virtual_time
async def test_a_namespace_with_a_long_queue_does_not_hold_up_another() -> None:
    harness = Harness(
        batch_max=4,
        key=lambda item: make_key(item.process_id, namespace="a" if item.number < 900 else "b"),
    )
    futures = harness.submit(*crowd(*range(50), 901, 902, 903))
    async with harness.running():
        await asyncio.wait(futures)

    assert harness.batches[:2] == [(0, 901, 1, 902), (2, 903, 3, 4)]
    assert harness.batches[-1] == (49,)


@in_virtual_time
async def test_processes_in_other_lanes_are_not_held_up() -> None:
    harness = Harness(shard_count=2)
    shards = {number: make_key(f"p{number}").slot % 2 for number in range(1, 20)}
    one = next(number for number, shard in shards.items() if shard == 0)
    other = next(number for number, shard in shards.items() if shard == 1)
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
