"""NamespaceQueue sizes: counted rarely, by one statement for all, without delaying other work."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.domain.views.activity import QUEUES_MAX, NamespaceQueue, QueueCounts
from progressor.storage.replicas.queues import (
    COUNT_MAX,
    PATIENCE,
    PAUSE,
    REST,
    ROWS_MAX,
    QueueWatch,
)
from tests.support.builders import make_namespace, make_queue, seconds
from tests.support.clock import ManualClock
from tests.support.runtime.virtual_time import in_virtual_time


class Counting:
    """Counts one due task more each time, and takes as long as told."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lasting = seconds(0)
        self.asked: list[Sequence[str]] = []
        self.raises: Exception | None = None
        self.held: asyncio.Event | None = None
        self.reached = asyncio.Event()

    async def count(self, namespaces: Sequence[str]) -> Sequence[NamespaceQueue]:
        self.asked.append(namespaces)
        number = len(self.asked)
        self.reached.set()
        if self.held is not None:
            await self.held.wait()
        self.clock.advance(self.lasting)
        if self.raises is not None:
            raise self.raises
        return [make_queue(name, due_count=number) for name in namespaces]


class Namespaces:
    """Knows some, or learns of them on demand."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.refreshed = False

    def known(self) -> tuple[Namespace, ...]:
        return tuple(map(make_namespace, self.names))

    async def refresh(self) -> None:
        self.refreshed = True
        self.names = ("orders",)


def idle() -> Mapping[str, int]:
    return {}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def counting(clock: ManualClock) -> Counting:
    return Counting(clock)


def watch_of(counting: Counting, namespaces: Namespaces | None = None) -> QueueWatch:
    return QueueWatch(
        queues=counting, namespaces=namespaces or Namespaces("orders"), clock=counting.clock
    )


async def test_a_count_serves_all_who_ask_until_it_is_old(
    clock: ManualClock, counting: Counting
) -> None:
    watch = watch_of(counting)

    first = await watch.counts(idle)
    clock.advance(PAUSE - seconds(0.5))
    again = await watch.counts(idle)
    clock.advance(seconds(0.5))
    later = await watch.counts(idle)

    assert [it.queues[0].due_count for it in (first, again, later)] == [1, 1, 2]
    assert [it.age for it in (first, again, later)] == [
        seconds(0), PAUSE - seconds(0.5), seconds(0),
    ]  # fmt: skip


async def test_those_who_ask_at_once_share_a_statement(counting: Counting) -> None:
    watch = watch_of(counting)
    counting.held = asyncio.Event()

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(watch.counts(idle)) for _ in range(5)]
        await counting.reached.wait()
        counting.held.set()

    assert len(counting.asked) == 1
    assert {it.result().queues[0].due_count for it in asking} == {1}


async def test_who_goes_leaves_the_count_to_the_next(counting: Counting) -> None:
    watch = watch_of(counting)
    counting.held = asyncio.Event()
    leaving = asyncio.ensure_future(watch.counts(idle))
    await counting.reached.wait()
    waiting = asyncio.ensure_future(watch.counts(idle))

    leaving.cancel()
    counting.held.set()

    assert (await waiting).queues[0].due_count == 2


async def test_a_long_count_is_followed_by_a_long_rest(
    clock: ManualClock, counting: Counting
) -> None:
    watch = watch_of(counting)
    counting.lasting = seconds(1)
    await watch.counts(idle)

    clock.advance(seconds(REST - 0.5))
    resting = await watch.counts(idle)
    clock.advance(seconds(0.5))
    rested = await watch.counts(idle)

    # As of when it began: what came meanwhile may not be in it.
    assert (resting.queues[0].due_count, resting.age) == (1, seconds(REST + 0.5))
    assert rested.queues[0].due_count == 2


async def test_where_it_cannot_be_counted_the_last_count_stands(
    clock: ManualClock, counting: Counting
) -> None:
    watch = watch_of(counting)
    counting.raises = errors.StorageUnavailableError("the statement timed out")
    never = await watch.counts(idle)
    clock.advance(PAUSE)
    counting.raises = None
    counted = await watch.counts(idle)
    clock.advance(PAUSE)
    counting.raises = errors.StorageUnavailableError("the statement timed out")
    still = await watch.counts(idle)

    assert never == QueueCounts()
    assert (counted.queues[0].due_count, counted.age) == (2, seconds(0))
    assert (still.queues, still.age) == (counted.queues, PAUSE)


async def test_namespaces_are_read_where_none_is_known(counting: Counting) -> None:
    namespaces = Namespaces()

    await watch_of(counting, namespaces).counts(idle)

    assert namespaces.refreshed
    assert counting.asked == [["orders"]]


@in_virtual_time
async def test_nobody_waits_long_for_a_count() -> None:
    counting = Counting(ManualClock())
    counting.held = asyncio.Event()
    began_at = asyncio.get_running_loop().time()

    assert await watch_of(counting).counts(idle) == QueueCounts()
    assert asyncio.get_running_loop().time() - began_at == PATIENCE.total_seconds()


async def test_of_two_counts_at_once_the_one_that_began_later_stays(
    clock: ManualClock, counting: Counting
) -> None:
    watch = watch_of(counting)
    counting.held = asyncio.Event()
    early = asyncio.ensure_future(watch.count(["orders"]))
    await counting.reached.wait()
    held, counting.held = counting.held, None
    clock.advance(seconds(1))

    await watch.count(["orders"])
    held.set()
    found = await early
    told = await watch.counts(idle)

    assert found[0].due_count == 1
    assert (told.queues[0].due_count, told.age) == (2, seconds(0))


async def test_without_namespaces_nothing_is_counted(counting: Counting) -> None:
    namespaces = Namespaces()
    watch = watch_of(counting, namespaces)

    async def find_none() -> None:
        namespaces.names = ()

    namespaces.refresh = find_none  # type: ignore[method-assign]

    assert await watch.counts(idle) == QueueCounts(age=seconds(0), exact_below=COUNT_MAX)


async def test_of_too_many_namespaces_those_are_counted_in_which_most_is_running(
    counting: Counting,
) -> None:
    names = [f"n{number:03}" for number in range(QUEUES_MAX + 3)]
    watch = watch_of(counting, Namespaces(*names))

    found = await watch.counts(lambda: {names[-1]: 3, names[-2]: 1})

    told = [it.namespace for it in found.queues]
    assert told == sorted([*names[: QUEUES_MAX - 2], names[-2], names[-1]])
    assert found.left_out_count == 3
    # What can be counted is shared.
    assert found.exact_below == ROWS_MAX // QUEUES_MAX
