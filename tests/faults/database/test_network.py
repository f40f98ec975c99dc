"""The way to the database fails under load, for as long as it takes to be noticed.

Afterwards calls resume by themselves, although of the connections some are dead without a word.
"""

from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from tests.support.engine.replica import Env, Replica, running_replica
from tests.support.faults.load import (
    BRIEF,
    NOISE_SECONDS,
    RESUMED_SECONDS,
    judge,
    loaded,
)
from tests.support.postgres.proxy import Proxy
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

BREAKS: Mapping[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "refused": Proxy.refuse,
    "stalled": Proxy.stall,
    "half-open": Proxy.half_open,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(proxy: Proxy) -> AsyncIterator[Replica]:
    async with running_replica(proxy.conninfo, BRIEF) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with judged_env(replica) as env:
        yield env


@pytest.mark.parametrize("name", BREAKS)
async def test_a_way_that_fails_under_load_costs_no_call(
    env: Env, proxy: Proxy, database: str, name: str
) -> None:
    async with loaded(env) as load:
        failed = env.points.count("scan_failed")
        BREAKS[name](proxy)
        # The scanning replica has lost its connection or timed out.
        await env.points.wait("scan_failed", failed + 1)
        proxy.restore()
        took = await load.resumed()

    assert took < RESUMED_SECONDS + NOISE_SECONDS
    await judge(load, database)


async def test_what_a_dead_connection_delivers_late_changes_nothing(
    env: Env, proxy: Proxy, database: str
) -> None:
    async with loaded(env) as load:
        proxy.half_open()
        # Calls go on over new connections, while what was sent on the old ones is still under way.
        took = await load.resumed()
        proxy.restore()
        await load.resumed()

    assert took < RESUMED_SECONDS + NOISE_SECONDS
    await judge(load, database)
