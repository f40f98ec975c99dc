"""Since when a processor has not been reached, and which steps come near its limit."""

from collections.abc import AsyncIterator
from datetime import timedelta

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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def ways() -> Ways:
    return Ways()


@pytest.fixture
def reach(ways: Ways, clock: ManualClock) -> Reach:
    return Reach(ways, clock)


def duration(reach: Reach) -> timedelta | None:
    return reach.unreachable().get(NOWHERE.name)


async def test_it_counts_from_the_first_step_that_did_not_come_through(
    reach: Reach, clock: ManualClock
) -> None:
    reach.note(NOWHERE.name, answered=False)
    clock.advance(seconds(2))
    reach.note(NOWHERE.name, answered=False)
    clock.advance(seconds(1))

    assert duration(reach) == seconds(3)


async def test_an_answer_ends_it_and_the_next_time_is_another(
    reach: Reach, clock: ManualClock
) -> None:
    reach.note(NOWHERE.name, answered=False)
    clock.advance(seconds(2))
    reach.note(NOWHERE.name, answered=True)
    answered = duration(reach)
    reach.note(NOWHERE.name, answered=False)

    assert (answered, duration(reach)) == (None, seconds(0))


@pytest.mark.parametrize("connected", [True, None])
async def test_a_step_that_fails_though_the_processor_is_there_does_not_begin_it(
    reach: Reach, ways: Ways, connected: bool | None
) -> None:
    ways.connected = connected

    reach.note(NOWHERE.name, answered=False)

    assert duration(reach) is None


@pytest.mark.parametrize("connected", [True, None])
async def test_a_look_ends_it_where_the_processor_is_connected_or_nobodys(
    reach: Reach, ways: Ways, connected: bool | None
) -> None:
    reach.note(NOWHERE.name, answered=False)
    reach.look()
    before = duration(reach)
    ways.connected = connected
    reach.look()

    assert (before, duration(reach)) == (seconds(0), None)


async def test_a_target_that_serves_others_counts_though_it_is_connected(
    reach: Reach, ways: Ways, clock: ManualClock
) -> None:
    ways.connected = True
    reach.note(NOWHERE.name, answered=True, misconfigured=True)
    clock.advance(seconds(2))
    reach.look()
    before = duration(reach)
    reach.note(NOWHERE.name, answered=True)

    assert (before, duration(reach)) == (seconds(2), None)


async def test_a_target_that_served_others_and_is_gone_is_back_with_its_connection(
    reach: Reach, ways: Ways, clock: ManualClock
) -> None:
    ways.connected = True
    reach.note(NOWHERE.name, answered=True, misconfigured=True)
    clock.advance(seconds(2))
    ways.connected = False
    reach.note(NOWHERE.name, answered=False)
    gone = duration(reach)
    ways.connected = True
    reach.look()

    assert (gone, duration(reach)) == (seconds(2), None)


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
