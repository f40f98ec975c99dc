"""Since when a processor has not been reached, and which steps come near its limit."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.domain.processes.namespace import Namespace
from progressor.domain.views.replica import StepSize
from progressor.processor.breaker import RAMP_FIRST, UNLIMITED
from progressor.processor.channels import Channels
from progressor.processor.reach import TOLD_SECONDS, Reach, Sizes
from tests.support.builders import make_key, make_namespace, seconds
from tests.support.clock import ManualClock

NOWHERE = make_namespace(processor_targets=("127.0.0.1:1",))


class Ways(Channels):
    """Channels that are connected or not, as told; None: not asked yet."""

    def __init__(self) -> None:
        super().__init__()
        self.connected: bool | None = False

    def is_connected(self, namespace_name: str) -> bool | None:
        """Return what was told."""
        assert namespace_name == NOWHERE.name
        return self.connected


MISSED, LOST, TOOK, REFUSED, LOOK = "missed", "lost", "took", "refused", "look"

COURSES: dict[str, tuple[list[object], float | None]] = {
    "it counts from the first step that was missed": ([MISSED, 2, MISSED, 1], 3),
    "an answer ends it": ([MISSED, 2, TOOK], None),
    "and the next time is another": ([MISSED, 2, TOOK, MISSED, 1], 1),
    "a step that fails though the processor is there": ([True, LOST], None),
    "a step of a namespace that was forgotten": ([None, LOST], None),
    "a step whose connection is lost": ([LOST, 1], 1),
    "a look finds it as before": ([MISSED, 1, LOOK], 1),
    "a look finds it connected": ([MISSED, 1, True, LOOK], None),
    "a look finds it forgotten": ([MISSED, 1, None, LOOK], None),
    "a target that refuses, though connected": ([True, REFUSED, 2, LOOK], 2),
    "a step that it takes": ([True, REFUSED, 2, LOOK, TOOK], None),
    "that target, gone": ([True, REFUSED, 2, False, MISSED], 2),
    "that target, gone and back": ([True, REFUSED, 2, False, MISSED, True, LOOK], None),
}
"""Steps and looks, seconds that pass, whether the channels are connected; and the duration then."""

NAME = NOWHERE.name


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ways() -> Ways:
    return Ways()


@pytest.fixture
def reach(ways: Ways, clock: ManualClock) -> Reach:
    return Reach(ways, clock)


@pytest.mark.parametrize("name", COURSES)
async def test_a_processor_is_unreachable_since_the_first_step_that_missed_it(
    name: str, clock: ManualClock, ways: Ways, reach: Reach
) -> None:
    course, expected = COURSES[name]
    for event in course:
        match event:
            case True | False | None:
                ways.connected = event
            case int():
                clock.advance(seconds(event))
            case "look":
                reach.look()
            case "took":
                reach.took(NAME, 1)
            case "lost":
                reach.lost(NAME)
            case "refused":
                reach.refused(NAME, 1, None, is_bound=False)
            case _:
                reach.missed(NAME, 1, is_bound=False)

    assert reach.unreachable().get(NAME) == (None if expected is None else seconds(expected))


def refuse(reach: Reach, task_id: int, retry_after: float | None = None) -> float:
    after = None if retry_after is None else seconds(retry_after)
    return reach.refused(NAME, task_id, after, is_bound=False).total_seconds()


async def test_a_step_that_misses_its_processor_waits_for_the_breaker_alone(reach: Reach) -> None:
    assert reach.missed(NAME, 1, is_bound=False) == seconds(0)
    assert reach.breakers[NAME].allowance() == 0


@pytest.mark.parametrize("refusing", [False, True])
async def test_patience_counts_anew_after_a_pause(
    reach: Reach, ways: Ways, clock: ManualClock, refusing: bool
) -> None:
    def miss() -> None:
        for task_id in (1, 2, 3):
            if refusing:
                reach.refused(NAME, task_id, None, is_bound=False, patience=seconds(60))
            else:
                reach.missed(NAME, task_id, is_bound=False, patience=seconds(60))

    ways.connected = refusing
    miss()
    clock.advance(seconds(3600))
    reach.resumed(NAME)
    miss()
    clock.advance(seconds(59))

    breaker = reach.breakers[NAME]
    assert breaker.allowance() == int(refusing)
    assert reach.waiting_for(NAME) == seconds(59)
    assert reach.unreachable()[NAME] == seconds(3659)
    clock.advance(seconds(1))
    assert breaker.allowance() == UNLIMITED


async def test_after_each_pause_steps_start_slowly(reach: Reach, clock: ManualClock) -> None:
    def allowances() -> list[int]:
        reach.resumed(NAME)
        first = reach.breakers[NAME].allowance()
        clock.advance(seconds(1))
        return [first, reach.breakers[NAME].allowance()]

    assert allowances() == [0, RAMP_FIRST]
    clock.advance(seconds(3600))
    assert allowances() == [0, RAMP_FIRST]


async def test_the_step_of_a_bound_node_waits_by_a_backoff_and_opens_no_breaker(
    reach: Reach,
) -> None:
    pauses = [reach.missed(NAME, 1, is_bound=True).total_seconds() for _ in range(9)]

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30]
    assert not reach.breakers


async def test_a_step_that_alone_is_refused_waits_alone(ways: Ways, reach: Reach) -> None:
    ways.connected = True
    pauses = []
    for _ in range(9):
        pauses.append(refuse(reach, 1))
        reach.took(NAME, 2)

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30]
    assert not reach.breakers


async def test_a_step_behind_an_earlier_one_of_its_process_waits_alone(
    ways: Ways, reach: Reach
) -> None:
    ways.connected = True
    refuse(reach, 9)
    pauses = [reach.busy(NAME, 1).total_seconds() for _ in range(3)]
    others = [reach.busy(NAME, task_id).total_seconds() for task_id in (2, 3, 4)]

    assert (pauses, others) == ([0.2, 0.4, 0.8], [0.2] * 3)
    assert reach.busy(NAME, 5, seconds(7)) == seconds(7)
    assert not reach.breakers
    assert not reach.unreachable()


async def test_a_step_that_was_taken_begins_its_backoff_anew(ways: Ways, reach: Reach) -> None:
    ways.connected = True
    refuse(reach, 1)
    refuse(reach, 1)
    reach.took(NAME, 1)

    assert refuse(reach, 1) == 0.2


async def test_refusals_in_a_row_open_the_breaker_and_a_step_taken_begins_the_ramp(
    ways: Ways, clock: ManualClock, reach: Reach
) -> None:
    ways.connected = True
    pauses = [refuse(reach, task_id) for task_id in (1, 2, 3)]
    before = reach.breakers[NAME].allowance()
    clock.advance(seconds(0.2))
    probe = reach.breakers[NAME].allowance()
    reach.took(NAME, 1)
    clock.advance(seconds(0.5))

    assert (pauses, before, probe) == ([0.2, 0.2, 0], 0, 1)
    assert reach.breakers[NAME].allowance() == pytest.approx(50, abs=1)


async def test_a_processor_that_says_when_is_asked_then(ways: Ways, reach: Reach) -> None:
    ways.connected = True

    assert [refuse(reach, task_id, 7) for task_id in (1, 2, 3)] == [7, 7, 7]


async def test_a_connection_makes_room_at_once_and_the_ramp_ends_with_time(
    ways: Ways, clock: ManualClock, reach: Reach
) -> None:
    reach.missed(NAME, 1, is_bound=False)
    ways.on_connected(NAME)
    woken = reach.room_made.is_set()
    clock.advance(seconds(10))
    reach.room_made.clear()
    await reach.room_made.wait()

    assert woken
    assert not reach.breakers
    assert not reach.unreachable()


async def test_a_namespace_that_is_deleted_leaves_no_breaker(ways: Ways, reach: Reach) -> None:
    reach.missed(NAME, 1, is_bound=False)
    ways.connected = None
    reach.look()

    assert not reach.breakers


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[Channels]:
    channels = Channels()
    yield channels
    await channels.close()


@pytest.mark.parametrize(("asked", "connected"), [(NOWHERE, False), (None, None)])
async def test_channels_are_connected_where_a_connection_stands(
    channels: Channels, asked: Namespace | None, connected: bool | None
) -> None:
    if asked is not None:
        await channels.give_back(await channels.take(asked))

    assert channels.is_connected(NOWHERE.name) is connected


KEY = make_key()


@pytest.fixture
def sizes(clock: ManualClock) -> Sizes:
    return Sizes(clock)


def step(size: int, process_id: str = KEY.process_id, limit: int = 100) -> StepSize:
    return StepSize(process_id=process_id, size_bytes=size, limit_bytes=limit)


@pytest.mark.parametrize(("size", "is_told"), [(49, False), (50, True), (100, True), (101, True)])
def test_a_step_is_told_from_half_of_its_limit_on(
    sizes: Sizes,
    size: int,
    is_told: bool,  # from the table
) -> None:
    sizes.note(KEY, size=size, limit=100)

    assert sizes.largest() == ({KEY.namespace: step(size)} if is_told else {})


def test_the_nearest_to_its_limit_is_told(sizes: Sizes) -> None:
    other = make_key("other")
    sizes.note(KEY, size=60, limit=100)
    sizes.note(other, size=70, limit=100)
    sizes.note(KEY, size=100, limit=200)

    assert sizes.largest() == {KEY.namespace: step(70, "other")}


def test_it_is_told_for_ten_minutes_unless_it_comes_again(sizes: Sizes, clock: ManualClock) -> None:
    sizes.note(KEY, size=60, limit=100)
    clock.advance(seconds(TOLD_SECONDS - 1))
    sizes.note(KEY, size=60, limit=100)
    clock.advance(seconds(TOLD_SECONDS - 1))
    again = sizes.largest()
    clock.advance(seconds(1))

    assert (again, sizes.largest()) == ({KEY.namespace: step(60)}, {})


def test_a_smaller_one_takes_the_place_of_one_that_is_old(sizes: Sizes, clock: ManualClock) -> None:
    sizes.note(KEY, size=90, limit=100)
    sizes.note(KEY, size=60, limit=100)
    clock.advance(seconds(TOLD_SECONDS))
    sizes.note(KEY, size=60, limit=100)

    assert sizes.largest() == {KEY.namespace: step(60)}
