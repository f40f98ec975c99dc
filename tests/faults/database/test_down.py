"""PostgreSQL, or the way to it, fails under load; afterwards calls resume by themselves."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from tests.support.engine.replica import Env, Replica, running_replica
from tests.support.faults.disasters import ABSENT, CUT_OFF, DISASTERS, Target, terminate_all
from tests.support.faults.load import BRIEF, CALLERS, RESUMED_SECONDS, called, judged_load
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.locks import until_blocked
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import Answer
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEIGHBOUR_SECONDS = 6.0
"""For calls that have nothing to wait for; a statement may take one."""

NOTICED = (*CUT_OFF, "no connection left")
"""Disasters that a scan meets while they last; a cut is over at once, and any user may meet it."""

SMALL: Mapping[str, str] = {
    "database.front_connections_max": "1",
    "database.worker_connections_max": "1",
    "database.scan_connections_max": "1",
}


@pytest.fixture(scope="module")
def own_way(conninfo: str) -> Iterator[Proxy]:
    with running_proxy(conninfo) as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(own_way: Proxy) -> AsyncIterator[Replica]:
    async with running_replica(own_way.conninfo, BRIEF) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def loaded_env(replica: Replica) -> AsyncIterator[Env]:
    async with judged_env(replica) as env:
        yield env


@pytest.fixture
def own_observer(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["cut", *CUT_OFF, *ABSENT])
async def test_a_disaster_under_load_costs_no_call_and_nobody_has_to_help(
    loaded_env: Env, mortal: Cluster, conninfo: str, own_way: Proxy, name: str
) -> None:
    async with judged_load(loaded_env, conninfo) as load:
        failed = loaded_env.points.count("scan_failed")
        async with DISASTERS[name](Target(mortal, conninfo, own_way)):
            if name in NOTICED:
                await loaded_env.points.wait("scan_failed", failed + 1)
        took = await load.resumed()

    assert took < RESUMED_SECONDS


async def test_what_a_dead_connection_delivers_late_changes_nothing(
    loaded_env: Env, conninfo: str, own_way: Proxy
) -> None:
    async with judged_load(loaded_env, conninfo) as load:
        own_way.half_open()
        # Calls go on over new connections, while what was sent on the old ones is still under way.
        took = await load.resumed()
        own_way.restore()
        await load.resumed()

    assert took < RESUMED_SECONDS


async def test_all_backends_terminated_at_once_again_and_again_cost_no_call(
    loaded_env: Env, conninfo: str, chance: random.Random
) -> None:
    async with judged_load(loaded_env, conninfo) as load:
        for _ in range(5):
            await asyncio.to_thread(terminate_all, conninfo)
            await load.progressed(chance.randint(1, 2 * CALLERS))
        took = await load.resumed()

    assert took < RESUMED_SECONDS


async def test_pools_of_one_connection_carry_the_same_load(conninfo: str) -> None:
    async with (
        running_replica(conninfo, {**BRIEF, **SMALL}) as small,
        judged_env(small) as env,
    ):
        async with judged_load(env, conninfo) as load:
            await asyncio.to_thread(terminate_all, conninfo)
            took = await load.resumed()

        assert took < RESUMED_SECONDS


async def test_a_session_idle_in_a_transaction_holds_up_its_process_until_it_ends(
    loaded_env: Env, conninfo: str
) -> None:
    async with (
        judged_load(loaded_env, conninfo) as load,
        await psycopg.AsyncConnection.connect(conninfo) as idle,
    ):
        await lock(idle, loaded_env, "called0")
        # A caller that waits for it gets an error after as long as a statement may take.
        with pytest.raises(errors.StorageUnavailableError):
            await loaded_env.client.simple_repair("called0", timeout=5)
        await idle.rollback()
        took = await load.resumed()

    assert took < RESUMED_SECONDS


async def test_a_session_idle_in_a_transaction_holds_up_no_other_process(
    loaded_env: Env, conninfo: str, own_observer: psycopg.Connection[Any]
) -> None:
    await loaded_env.running("neighbour", Answer())
    await loaded_env.running("locked", Answer())
    async with (
        asyncio.TaskGroup() as group,
        await psycopg.AsyncConnection.connect(conninfo) as idle,
    ):
        await lock(idle, loaded_env, "locked")
        waiting = group.create_task(called(loaded_env, "locked", b"1"))
        await until_blocked(own_observer)
        async with asyncio.timeout(NEIGHBOUR_SECONDS):
            for number in range(10):
                await called(loaded_env, "neighbour", b"%d" % number)
        await idle.rollback()

    assert waiting.result() == b"1"


async def lock(idle: psycopg.AsyncConnection[Any], env: Env, process_id: str) -> None:
    """Lock the row of a process until the transaction ends."""
    await idle.execute(
        "SELECT FROM progressor.processes WHERE namespace = %s AND process_id = %s FOR UPDATE",
        [env.namespace, process_id],
    )
