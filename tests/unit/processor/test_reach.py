"""Since when a processor has not been reached: what begins it, and what ends it."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from progressor.domain.processes.namespace import Namespace
from progressor.processor.channels import Channels
from progressor.processor.reach import Reach
from tests.support.builders import make_namespace, seconds
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
