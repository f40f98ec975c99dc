"""Group commit: what waits at the moment becomes one write."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import psycopg
import psycopg_pool
import pytest

from progressor import errors
from progressor.domain.process import ProcessKey
from progressor.storage.group_commit import (
    CONFLICT_ATTEMPTS_MAX,
    GATHER_SPLIT,
    GATHER_WRITES,
    HOLD_SECONDS,
    IDLE_SECONDS,
    QUEUE_BYTES_MAX,
    GroupCommit,
    Insistence,
)
from progressor.storage.lane import ASIDE_SECONDS, BATCH_BYTES_MAX
from progressor.storage.pools import Connection, Pool
from tests.support.builders import make_key
from tests.support.memory import MemoryPool
from tests.support.virtual_time import in_virtual_time, settled

TIMEOUT_SECONDS = 10.0
GATHER_SECONDS = 0.01
WRITE_SECONDS = 0.002
AWAY = psycopg.OperationalError
LOCKED = psycopg.errors.LockNotAvailable
CONFLICT = psycopg.errors.DeadlockDetected
REFUSED = psycopg.DataError


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """Something to write about a process."""

    number: int
    process_id: str
    poisoned: bool = False
    rival: str | None = None

    @property
    def key(self) -> ProcessKey:
        return make_key(self.process_id)


class Bench:
    """A group commit over a scripted write; an error in the script is raised by one write."""

    def __init__(
        self, insistence: Insistence = Insistence.GIVE_UP, *, seconds: float = 0.0, **fields: Any
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
        self.told: list[tuple[str, int]] = []
        self.locked: set[str] = set()
        """Processes that another transaction holds."""
        self.asked: list[tuple[str, ...]] = []
        self.open = asyncio.Event()
        self.open.set()
        defaults = {"lane_count": 1, "batch_max": 4, "queue_max": 100}
        self.commit: GroupCommit[Item, int] = GroupCommit(
            name="test",
            write=self._write,
            key=lambda item: item.key,
            pool=cast("Pool", self.pool),
            insistence=insistence,
            find_locked=self._find_locked,
            statement_timeout=TIMEOUT_SECONDS,
            on_batch=lambda name, size: self.told.append((name, size)),
            **defaults | fields,
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
        if any(item.poisoned for item in items):
            raise REFUSED
        return [10 * item.number for item in items]

    async def _find_locked(
        self, _connection: Connection, keys: Sequence[ProcessKey]
    ) -> frozenset[ProcessKey]:
        self.asked.append(tuple(key.process_id for key in keys))
        return frozenset(key for key in keys if key.process_id in self.locked)


def crowd(*numbers: int) -> list[Item]:
    """Return items of as many processes."""
    return [Item(number, f"p{number}") for number in numbers]


@in_virtual_time
async def test_a_lone_item_is_written_at_once() -> None:
    bench = Bench()
    async with bench.running():
        (future,) = bench.submit(Item(1, "p1"))

        assert await future == 10

    assert asyncio.get_running_loop().time() == 0
    assert bench.told == [("test", 1)]


@in_virtual_time
async def test_what_comes_while_a_batch_is_in_flight_makes_the_next_one() -> None:
    bench = Bench()
    bench.open.clear()
    async with bench.running():
        first = bench.submit(*crowd(1))
        await settled()
        others = bench.submit(*crowd(2, 3))
        await settled()
        waiting = bench.commit.waiting_count
        bench.open.set()
        await asyncio.wait([*first, *others])

    assert waiting == 2
    assert bench.batches == [(1,), (2, 3)]


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
    bench = Bench(lane_count=2)
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
    assert bench.commit.waiting_count == 2


@in_virtual_time
async def test_what_is_decided_is_never_refused() -> None:
    bench = Bench(Insistence.INSIST, queue_max=2)

    bench.submit(*crowd(1, 2, 3))

    assert bench.commit.waiting_count == 3


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
    bench = Bench(lane_count=3)
    running = asyncio.ensure_future(bench.commit.run())
    await settled()

    bench.commit.close()

    await running


@in_virtual_time
async def test_an_outage_fails_all_who_wait_and_would_rather_know() -> None:
    bench = Bench(batch_max=2)
    bench.script.append(AWAY)
    futures = bench.submit(*crowd(1, 2, 3))
    async with bench.running():
        await asyncio.wait(futures)

    raised = {type(future.exception()) for future in futures}
    assert raised == {errors.StorageUnavailableError}
    assert bench.batches == [(1, 2)]


@in_virtual_time
async def test_a_pool_that_is_away_fails_all_who_wait() -> None:
    bench = Bench()
    bench.pool.outages = 1
    (future,) = bench.submit(*crowd(1))
    async with bench.running():
        await asyncio.wait({future})

    assert isinstance(future.exception(), errors.StorageUnavailableError)


@in_virtual_time
async def test_what_comes_after_an_outage_is_written() -> None:
    bench = Bench()
    bench.script.append(AWAY)
    async with bench.running():
        (failed,) = bench.submit(*crowd(1))
        await asyncio.wait({failed})
        (later,) = bench.submit(*crowd(2))

        assert await later == 20

    assert isinstance(failed.exception(), errors.StorageUnavailableError)


@in_virtual_time
async def test_a_caller_who_has_gone_is_not_failed() -> None:
    bench = Bench()
    gone, there = bench.submit(*crowd(1, 2))
    gone.cancel()
    bench.script.append(AWAY)
    async with bench.running():
        await asyncio.wait({there})

    assert gone.cancelled()


@in_virtual_time
async def test_what_is_decided_is_written_again_until_postgresql_answers() -> None:
    bench = Bench(Insistence.INSIST)
    bench.script.extend([AWAY, AWAY])
    bench.pool.outages = 1
    futures = bench.submit(*crowd(1, 2))
    async with bench.running():
        await asyncio.wait(futures)

    assert [future.result() for future in futures] == [10, 20]
    assert bench.batches == [(1, 2), (1,), (1,), (2,)]
    assert bench.again == [False, True, True, True]


@in_virtual_time
async def test_an_outage_keeps_the_order_within_a_process() -> None:
    bench = Bench(Insistence.INSIST)
    bench.script.append(AWAY)
    bench.open.clear()
    async with bench.running():
        futures = bench.submit(Item(1, "a"), Item(2, "b"))
        await settled()
        futures += bench.submit(Item(3, "a"), Item(4, "b"))
        bench.open.set()
        await asyncio.wait(futures)

    assert bench.batches == [(1, 2), (1,), (2, 3), (4,)]


@in_virtual_time
async def test_a_worker_who_has_gone_leaves_its_settlement_to_be_written_again() -> None:
    bench = Bench(Insistence.INSIST)
    bench.script.append(AWAY)
    bench.open.clear()
    async with bench.running():
        (future,) = bench.submit(*crowd(1))
        await settled()
        future.cancel()
        bench.open.set()
        await asyncio.sleep(1)

    assert bench.batches == [(1,), (1,)]


@in_virtual_time
async def test_the_pauses_of_an_outage_grow_up_to_a_second_and_then_start_over() -> None:
    bench = Bench(Insistence.INSIST)
    bench.script.extend([AWAY] * 7)
    async with bench.running():
        (first,) = bench.submit(*crowd(1))
        await asyncio.wait({first})
        bench.script.append(AWAY)
        (second,) = bench.submit(*crowd(2))
        await asyncio.wait({second})

    pauses = [later - earlier for earlier, later in itertools.pairwise(bench.times)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.0, 0.05])


@in_virtual_time
async def test_the_pauses_of_an_outage_are_spread() -> None:
    bench = Bench(Insistence.INSIST, jitter=lambda: 1.0)
    bench.script.extend([AWAY] * 3)
    async with bench.running():
        (future,) = bench.submit(*crowd(1))
        await asyncio.wait({future})

    pauses = [later - earlier for earlier, later in itertools.pairwise(bench.times)]
    assert pauses == pytest.approx([0.05 * 1.25, 0.1 * 1.25, 0.2 * 1.25])


@in_virtual_time
async def test_what_was_not_written_is_written_again_in_smaller_and_then_in_larger_batches() -> (
    None
):
    bench = Bench(Insistence.INSIST, batch_max=8)
    bench.script.extend([AWAY] * 2)
    async with bench.running():
        futures = bench.submit(*crowd(*range(16)))
        await asyncio.wait(futures)

    assert [len(batch) for batch in bench.batches] == [8, 4, 2, 4, 8, 2]
    assert [future.result() for future in futures] == [10 * number for number in range(16)]


@in_virtual_time
async def test_a_batch_holds_no_more_bytes_than_it_may() -> None:
    bench = Bench(size=lambda item: BATCH_BYTES_MAX // 2 if item.number else BATCH_BYTES_MAX + 1)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(1, 2, 3, 0, 4)))

    assert bench.batches == [(1, 2), (3,), (0,), (4,)]
    assert bench.commit.waiting_bytes == 0


@in_virtual_time
async def test_a_line_that_is_full_of_bytes_refuses_requests_until_there_is_room() -> None:
    bench = Bench(size=lambda _: QUEUE_BYTES_MAX // 2)
    bench.submit(*crowd(1, 2))

    with pytest.raises(errors.OverloadedError, match="bytes"):
        bench.submit(*crowd(3))

    async with bench.running():
        await settled()
        (late,) = bench.submit(*crowd(3))

        assert await late == 30


@in_virtual_time
@pytest.mark.parametrize("insistence", Insistence)
async def test_a_line_that_was_given_up_or_put_back_knows_its_bytes(insistence: Insistence) -> None:
    bench = Bench(insistence, size=lambda _: 7)
    bench.script.append(AWAY)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(1, 2, 3, 4, 5, 6)))

    assert bench.commit.waiting_bytes == 0


@in_virtual_time
async def test_who_waits_keeps_its_place_where_only_connections_are_short() -> None:
    bench = Bench()
    bench.pool.outages = 2
    bench.pool.outage = psycopg_pool.TooManyRequests
    async with bench.running():
        (future,) = bench.submit(*crowd(1))

        assert await future == 10


@in_virtual_time
async def test_an_error_that_may_be_the_moment_s_is_repeated_before_it_counts_as_a_refusal() -> (
    None
):
    bench = Bench()
    bench.script.extend([psycopg.errors.InternalError_] * (CONFLICT_ATTEMPTS_MAX - 1))
    async with bench.running():
        (future,) = bench.submit(*crowd(1))

        assert await future == 10


@in_virtual_time
async def test_an_error_that_stays_is_a_refusal() -> None:
    bench = Bench()
    bench.script.extend([psycopg.errors.InternalError_] * CONFLICT_ATTEMPTS_MAX)
    async with bench.running():
        (future,) = bench.submit(*crowd(1))
        await asyncio.wait({future})

    assert isinstance(future.exception(), errors.StorageRefusedError)


@in_virtual_time
async def test_a_write_that_hangs_is_cut_off() -> None:
    bench = Bench()
    bench.open.clear()
    (future,) = bench.submit(*crowd(1))
    async with bench.running():
        await asyncio.wait({future})

    assert asyncio.get_running_loop().time() == TIMEOUT_SECONDS
    assert isinstance(future.exception(), errors.StorageUnavailableError)


@in_virtual_time
async def test_a_write_that_was_undone_for_another_is_repeated_at_once() -> None:
    bench = Bench()
    bench.script.append(CONFLICT)
    (future,) = bench.submit(*crowd(1))
    async with bench.running():
        assert await future == 10

    assert asyncio.get_running_loop().time() == 0
    assert bench.again == [False, False]


@in_virtual_time
async def test_a_write_that_is_undone_again_and_again_is_an_outage() -> None:
    bench = Bench()
    bench.script.extend([CONFLICT] * CONFLICT_ATTEMPTS_MAX)
    (future,) = bench.submit(*crowd(1))
    async with bench.running():
        await asyncio.wait({future})

    assert len(bench.batches) == CONFLICT_ATTEMPTS_MAX
    assert isinstance(future.exception(), errors.StorageConflictError)


@pytest.mark.parametrize("insistence", Insistence)
@in_virtual_time
async def test_an_item_that_postgresql_refuses_fails_alone(insistence: Insistence) -> None:
    bench = Bench(insistence)
    good, poisoned = crowd(1, 3, 4), Item(2, "p2", poisoned=True)
    futures = bench.submit(good[0], poisoned, *good[1:])
    async with bench.running():
        await asyncio.wait(futures)

    assert isinstance(futures[1].exception(), errors.StorageRefusedError)
    assert [futures[index].result() for index in (0, 2, 3)] == [10, 30, 40]


@pytest.mark.parametrize("error", [struct.error, UnicodeError, OverflowError])
@in_virtual_time
async def test_an_item_that_no_column_can_hold_fails_alone(error: type[Exception]) -> None:
    bench = Bench()
    bench.script.extend([error, error])
    futures = bench.submit(*crowd(1, 2))
    async with bench.running():
        await asyncio.wait(futures)

    assert isinstance(futures[0].exception(), errors.StorageRefusedError)
    assert futures[1].result() == 20


@in_virtual_time
async def test_the_refusal_of_an_item_that_nobody_waits_for_is_no_matter() -> None:
    bench = Bench(Insistence.INSIST)
    (gone,) = bench.submit(Item(1, "p1", poisoned=True))
    gone.cancel()
    async with bench.running():
        (there,) = bench.submit(*crowd(2))

        assert await there == 20


@in_virtual_time
async def test_half_a_batch_that_is_written_is_not_written_again_for_the_other() -> None:
    bench = Bench(Insistence.INSIST)
    bench.script.extend([REFUSED, None, AWAY])
    futures = bench.submit(*crowd(1, 2))
    async with bench.running():
        await asyncio.wait(futures)

    assert bench.batches == [(1, 2), (1,), (2,), (2,)]


@in_virtual_time
async def test_a_bug_in_a_write_ends_the_group() -> None:
    bench = Bench()
    bench.script.append(ZeroDivisionError)
    bench.submit(*crowd(1))

    with pytest.raises(ExceptionGroup) as caught:
        await bench.commit.run()

    assert caught.group_contains(ZeroDivisionError)


@in_virtual_time
async def test_in_a_crowd_a_batch_lets_itself_fill_for_a_few_writes() -> None:
    bench = Bench(gather_max=1, crowd=lambda: 1000, seconds=WRITE_SECONDS)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(1)))
        futures = bench.submit(*crowd(2))
        await asyncio.sleep(WRITE_SECONDS)
        futures += bench.submit(*crowd(3))
        await asyncio.wait(futures)

    assert bench.batches == [(1,), (2, 3)]
    assert bench.times == [0, pytest.approx(GATHER_WRITES * WRITE_SECONDS)]


@in_virtual_time
async def test_a_batch_lets_itself_fill_no_longer_than_it_may() -> None:
    bench = Bench(gather_max=GATHER_SECONDS, crowd=lambda: 1000, seconds=GATHER_SECONDS / 2)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(1)))
        await asyncio.wait(bench.submit(*crowd(2)))

    assert bench.times == [0, pytest.approx(GATHER_SECONDS)]


@in_virtual_time
async def test_a_batch_with_half_the_crowd_in_it_starts_at_once() -> None:
    bench = Bench(gather_max=1, crowd=lambda: 4, seconds=WRITE_SECONDS)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(1)))
        futures = bench.submit(*crowd(2))
        await asyncio.sleep(WRITE_SECONDS / 2)
        futures += bench.submit(*crowd(3))
        await asyncio.wait(futures)

    assert bench.batches == [(1,), (2, 3)]
    assert bench.times == [0, pytest.approx(1.5 * WRITE_SECONDS)]


@pytest.mark.parametrize(
    ("steps", "pause", "second"),
    [(3, 0.0, (2,)), (1000, 1.0, (2,)), (1000, 0.0, (2, 3, 4, 5))],
    ids=["nearly alone", "long after", "full already"],
)
@in_virtual_time
async def test_nobody_waits_in_vain_for_a_batch_to_fill(
    steps: int, pause: float, second: tuple[int, ...]
) -> None:
    bench = Bench(gather_max=GATHER_SECONDS, crowd=lambda: steps, seconds=WRITE_SECONDS)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(1)))
        await asyncio.sleep(pause)
        began_at = asyncio.get_running_loop().time()
        await asyncio.wait(bench.submit(*crowd(*second)))

    assert bench.times[-1] == began_at


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
    bench = Bench(gather_max=1, batch_max=128, crowd=lambda: steps, seconds=WRITE_SECONDS)
    async with bench.running():
        await asyncio.wait(bench.submit(*crowd(*range(waiting))))

    assert [len(batch) for batch in bench.batches] == sizes


@in_virtual_time
async def test_a_batch_that_fills_is_written_when_the_line_is_closed() -> None:
    bench = Bench(gather_max=1, crowd=lambda: 1000, seconds=WRITE_SECONDS)
    running = asyncio.ensure_future(bench.commit.run())
    await asyncio.wait(bench.submit(*crowd(1)))
    bench.submit(*crowd(2))
    await settled()

    bench.commit.close()
    await running

    assert bench.times == [0, WRITE_SECONDS]


def following(*process_ids: str, **fields: Any) -> tuple[Bench, list[Item], list[Item]]:
    """Return a bench where batches may follow each other, a batch, and one to come behind it."""
    bench = Bench(gather_max=1, batch_max=GATHER_SPLIT, crowd=lambda: 2 * GATHER_SPLIT, **fields)
    first = crowd(*range(GATHER_SPLIT))
    second = [Item(100 + number, process_id) for number, process_id in enumerate(process_ids)]
    return bench, first, second


def others(count: int) -> list[str]:
    return [f"other{number}" for number in range(count)]


@in_virtual_time
async def test_a_full_batch_follows_the_one_under_way() -> None:
    bench, first, second = following(*others(GATHER_SPLIT))
    bench.open.clear()
    async with bench.running():
        futures = bench.submit(*first)
        await settled()
        futures += bench.submit(*second[:-1])
        await settled()
        assert len(bench.batches) == 1, "not full yet"
        futures += bench.submit(second[-1])
        await settled()
        assert [len(batch) for batch in bench.batches] == [GATHER_SPLIT, GATHER_SPLIT]
        bench.submit(*(Item(200 + number, f"third{number}") for number in range(GATHER_SPLIT)))
        await settled()
        assert len(bench.batches) == 2, "a third behind two"

        bench.open.set()
        await asyncio.wait(futures)

    assert [future.result() for future in futures] == [
        10 * item.number for item in [*first, *second]
    ]
    assert bench.pool.lent == 1


@in_virtual_time
async def test_a_batch_in_a_small_crowd_waits_for_the_one_under_way() -> None:
    bench = Bench(gather_max=1, batch_max=GATHER_SPLIT, crowd=lambda: GATHER_SPLIT)
    bench.open.clear()
    async with bench.running():
        bench.submit(*crowd(*range(GATHER_SPLIT)))
        await settled()
        bench.submit(*(Item(100 + n, f"other{n}") for n in range(GATHER_SPLIT)))
        await settled()

        assert len(bench.batches) == 1


@in_virtual_time
async def test_an_item_of_a_process_under_way_does_not_follow() -> None:
    bench, first, second = following("p3", *others(GATHER_SPLIT - 1), "p5")
    bench.open.clear()
    async with bench.running():
        futures = bench.submit(*first)
        await settled()
        futures += bench.submit(*second)
        await settled()
        assert bench.batches[1] == tuple(item.number for item in second[1:-1])

        bench.open.set()
        await asyncio.wait(futures)

    assert bench.batches[2] == (second[0].number, second[-1].number)


@in_virtual_time
async def test_where_all_wait_for_the_batch_under_way_nothing_follows() -> None:
    bench, first, second = following(*(f"p{number}" for number in range(GATHER_SPLIT)))
    bench.open.clear()
    async with bench.running():
        futures = bench.submit(*first)
        await settled()
        futures += bench.submit(*second)
        await settled()
        assert len(bench.batches) == 1

        bench.open.set()
        await asyncio.wait(futures)

    assert bench.batches[1] == tuple(item.number for item in second)


@in_virtual_time
async def test_batches_that_broke_together_are_written_again_one_after_the_other() -> None:
    fields = {"insistence": Insistence.INSIST, "seconds": WRITE_SECONDS}
    bench, first, second = following(*others(GATHER_SPLIT), **fields)
    bench.script.extend([AWAY, AWAY])
    async with bench.running():
        futures = bench.submit(*first)
        await asyncio.sleep(WRITE_SECONDS / 2)
        futures += bench.submit(*second)
        await asyncio.wait(futures)

    one, two = (tuple(item.number for item in items) for items in (first, second))
    halves = [one[:4], one[4:] + two[:4], two[4:]]
    assert bench.batches == [one, two, *halves]
    assert bench.again == [False, False, True, True, True]
    assert bench.under_way_max == [1, 2, 1, 1, 1]


def by_rival(item: Item) -> str | None:
    return item.rival


@in_virtual_time
async def test_items_of_one_process_share_a_batch_where_they_are_no_rivals() -> None:
    bench = Bench(rival=by_rival)
    futures = bench.submit(*(Item(number, "a") for number in range(1, 7)))
    async with bench.running():
        await asyncio.wait(futures)

    assert bench.batches == [(1, 2, 3, 4), (5, 6)]


@in_virtual_time
async def test_nobody_passes_an_item_of_the_same_process_that_waits_for_its_rival() -> None:
    bench = Bench(rival=by_rival)
    futures = bench.submit(
        Item(1, "a", rival="k"),
        Item(2, "a", rival="k"),
        Item(3, "a", rival="other"),
        Item(4, "b"),
        Item(5, "a"),
    )
    async with bench.running():
        await asyncio.wait(futures)

    assert bench.batches == [(1, 4), (2, 3, 5)]


@in_virtual_time
async def test_a_crowd_on_one_process_is_written_in_full_batches() -> None:
    bench = Bench(rival=by_rival, batch_max=128, queue_max=10_000)
    futures = bench.submit(*(Item(number, "a") for number in range(10_000)))
    async with bench.running():
        await asyncio.wait(futures)

    written = [number for batch in bench.batches for number in batch]
    assert written == list(range(10_000))
    assert len(bench.batches) == 79


@in_virtual_time
async def test_a_busy_lane_keeps_its_connection() -> None:
    bench = Bench(seconds=WRITE_SECONDS)
    async with bench.running():
        for number in range(10):
            await asyncio.wait(bench.submit(*crowd(number)))
            await asyncio.sleep(IDLE_SECONDS / 10)

    assert bench.pool.lent == 1


@pytest.mark.parametrize("pause", [2 * IDLE_SECONDS, 0.0], ids=["idle", "busy for long"])
@in_virtual_time
async def test_a_lane_returns_its_connection_for_others(pause: float) -> None:
    bench = Bench(seconds=HOLD_SECONDS / 2)
    async with bench.running():
        for number in range(4):
            await asyncio.wait(bench.submit(*crowd(number)))
            await asyncio.sleep(pause)

    assert bench.pool.lent == (4 if pause else 2)


@in_virtual_time
async def test_closing_returns_the_connection_of_an_idle_lane_at_once() -> None:
    bench = Bench()
    running = asyncio.ensure_future(bench.commit.run())
    await asyncio.wait(bench.submit(*crowd(1)))

    bench.commit.close()
    await running

    assert asyncio.get_running_loop().time() == 0


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
