"""Since when a processor has not been reached, and which steps come near its limit."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.domain.processes.namespace import Namespace
from progressor.domain.views.replica import StepSize
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


MISSED, ANSWERED, WRONG, LOOK = "missed", "answered", "wrong", "look"

COURSES: dict[str, tuple[list[object], float | None]] = {
    "it counts from the first step that was missed": ([MISSED, 2, MISSED, 1], 3),
    "an answer ends it": ([MISSED, 2, ANSWERED], None),
    "and the next time is another": ([MISSED, 2, ANSWERED, MISSED, 1], 1),
    "a step that fails though the processor is there": ([True, MISSED], None),
    "a step of a namespace that was forgotten": ([None, MISSED], None),
    "a look finds it as before": ([MISSED, 1, LOOK], 1),
    "a look finds it connected": ([MISSED, 1, True, LOOK], None),
    "a look finds it forgotten": ([MISSED, 1, None, LOOK], None),
    "a target that serves others, though connected": ([True, WRONG, 2, LOOK], 2),
    "an answer of that target": ([True, WRONG, 2, LOOK, ANSWERED], None),
    "that target, gone": ([True, WRONG, 2, False, MISSED], 2),
    "that target, gone and back": ([True, WRONG, 2, False, MISSED, True, LOOK], None),
}
"""Steps and looks, seconds that pass, whether the channels are connected; and the duration then."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("name", COURSES)
async def test_a_processor_is_unreachable_since_the_first_step_that_missed_it(
    name: str, clock: ManualClock
) -> None:
    course, expected = COURSES[name]
    ways = Ways()
    reach = Reach(ways, clock)
    for event in course:
        match event:
            case True | False | None:
                ways.connected = event
            case int():
                clock.advance(seconds(event))
            case "look":
                reach.look()
            case _:
                reach.note(NOWHERE.name, answered=event != MISSED, misconfigured=event == WRONG)

    assert reach.unreachable().get(NOWHERE.name) == (
        None if expected is None else seconds(expected)
    )


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
