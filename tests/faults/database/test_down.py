"""The database dies, is full, or stands still, under load; afterwards calls resume by themselves.

The load is a crowd of callers with idempotency keys, who insist as a user does, and processes that
drive themselves. What every caller was told is compared with what is in the database.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.storage.postgres.migrations import migrate
from tests.support.engine.replica import Env, Replica, running_replica
from tests.support.faults.disasters import (
    kill_and_restart,
    terminate_all,
    without_connections,
)
from tests.support.faults.load import (
    BRIEF,
    CALLERS,
    NOISE_SECONDS,
    RESUMED_SECONDS,
    called,
    judge,
    loaded,
)
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.locks import until_blocked
from tests.support.processor.scripted import Answer
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEIGHBOUR_SECONDS = 6.0
"""For calls that have nothing to wait for; a statement may take one."""

SMALL: Mapping[str, str] = {
    "database.front_connections_max": "1",
    "database.worker_connections_max": "1",
    "database.scan_connections_max": "1",
}


@pytest.fixture(scope="module")
def conninfo(mortal: Cluster) -> str:
    created = mortal.create_database()
    migrate(created)
    return created


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(conninfo: str) -> AsyncIterator[Replica]:
    async with running_replica(conninfo, BRIEF) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with judged_env(replica) as env:
        yield env


@pytest.fixture
def own_observer(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection past the engine's."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("end", [Cluster.restart, kill_and_restart], ids=["restart", "kill -9"])
async def test_a_server_that_ends_under_load_costs_no_call_and_nobody_has_to_help(
    env: Env, mortal: Cluster, conninfo: str, end: Callable[[Cluster], None]
) -> None:
    async with loaded(env) as load:
        await asyncio.to_thread(end, mortal)
        took = await load.resumed()

    assert took < RESUMED_SECONDS + NOISE_SECONDS
    await judge(load, conninfo)


async def test_all_backends_terminated_at_once_again_and_again_cost_no_call(
    env: Env, conninfo: str, chance: random.Random
) -> None:
    async with loaded(env) as load:
        for _ in range(5):
            await asyncio.to_thread(terminate_all, conninfo)
            await load.progressed(chance.randint(1, 2 * CALLERS))
        took = await load.resumed()

    assert took < RESUMED_SECONDS + NOISE_SECONDS
    await judge(load, conninfo)


async def test_a_server_without_a_connection_left_is_waited_for(env: Env, conninfo: str) -> None:
    async with loaded(env) as load:
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, without_connections(conninfo))
            failed = env.points.count("scan_failed")
            await env.points.wait("scan_failed", failed + 1)
        took = await load.resumed()

    assert took < RESUMED_SECONDS + NOISE_SECONDS
    await judge(load, conninfo)


async def test_pools_of_one_connection_carry_the_same_load(conninfo: str) -> None:
    async with (
        running_replica(conninfo, {**BRIEF, **SMALL}) as small,
        judged_env(small) as env,
    ):
        async with loaded(env) as load:
            await asyncio.to_thread(terminate_all, conninfo)
            took = await load.resumed()

        assert took < RESUMED_SECONDS + NOISE_SECONDS
        await judge(load, conninfo)


async def test_a_session_idle_in_a_transaction_holds_up_its_process_until_it_ends(
    env: Env, conninfo: str
) -> None:
    async with (
        loaded(env) as load,
        await psycopg.AsyncConnection.connect(conninfo) as idle,
    ):
        await lock(idle, env, "called0")
        # A caller that waits for it gets an error after as long as a statement may take.
        with pytest.raises(errors.StorageUnavailableError):
            await env.client.simple_repair("called0", timeout=5)
        await idle.rollback()
        took = await load.resumed()

    assert took < RESUMED_SECONDS + NOISE_SECONDS
    await judge(load, conninfo)


async def test_a_session_idle_in_a_transaction_holds_up_no_other_process(
    env: Env, conninfo: str, own_observer: psycopg.Connection[Any]
) -> None:
    await env.running("neighbour", Answer())
    await env.running("locked", Answer())
    async with (
        asyncio.TaskGroup() as group,
        await psycopg.AsyncConnection.connect(conninfo) as idle,
    ):
        await lock(idle, env, "locked")
        waiting = group.create_task(called(env, "locked", b"1"))
        await until_blocked(own_observer)
        async with asyncio.timeout(NEIGHBOUR_SECONDS):
            for number in range(10):
                await called(env, "neighbour", b"%d" % number)
        await idle.rollback()

    assert waiting.result() == b"1"


async def lock(idle: psycopg.AsyncConnection[Any], env: Env, process_id: str) -> None:
    """Lock the row of a process until the transaction ends."""
    await idle.execute(
        "SELECT FROM progressor.processes WHERE namespace = %s AND process_id = %s FOR UPDATE",
        [env.namespace, process_id],
    )
