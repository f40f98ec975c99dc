"""PostgreSQL ends while gates are held and lines wait: afterwards everything passes, by itself."""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest
import pytest_asyncio

from progressor.storage.postgres.migrations import migrate
from tests.support.engine.gates import Gated, constraints, open_gated
from tests.support.engine.replica import Replica, running_replica
from tests.support.faults.disasters import kill_and_restart, terminate_all
from tests.support.faults.gate_watch import watched_gates
from tests.support.faults.ground import asked_twice, insisted
from tests.support.faults.load import BRIEF
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAPACITY = 3
COUNT = 30
End = Callable[[Cluster, str], None]


@pytest.fixture(scope="module")
def conninfo(mortal: Cluster) -> str:
    created = mortal.create_database()
    migrate(created)
    return created


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(conninfo: str) -> AsyncIterator[tuple[Replica, Replica]]:
    async with running_replica(conninfo, BRIEF) as here, running_replica(conninfo, BRIEF) as there:
        yield here, there


def restart(cluster: Cluster, _conninfo: str) -> None:
    cluster.restart()


def kill(cluster: Cluster, _conninfo: str) -> None:
    kill_and_restart(cluster)


def end_sessions(_cluster: Cluster, conninfo: str) -> None:
    terminate_all(conninfo)


@pytest.mark.parametrize("end", [restart, kill, end_sessions])
async def test_whoever_holds_and_whoever_waits_passes_afterwards(
    replicas: tuple[Replica, Replica], mortal: Cluster, conninfo: str, end: End
) -> None:
    here, there = replicas
    with watched_gates(conninfo):
        async with open_gated(conninfo, here, there.address, one_at_a_time=False) as gated:
            await play(gated, lambda: end(mortal, conninfo))
            with psycopg.connect(conninfo, autocommit=True) as observer:
                judged = dataclasses.replace(gated, observer=observer)
                await judged.at_rest()
                assert judged.settled_at_once() <= CAPACITY
            assert asked_twice(gated.env) == []


async def play(gated: Gated, end: Callable[[], None]) -> None:
    """Have many want the gate and one of a few others; end what is to end in the midst of them."""
    names = [f"p{number}" for number in range(COUNT)]
    hangs = await gated.held(*names)
    tasks = [
        (name, await gated.call(name, constraints("gate", f"db{number % 5}", capacity=CAPACITY)))
        for number, name in enumerate(names)
    ]
    for name in names[:CAPACITY]:
        await gated.has_begun(name)
    # Some are answered before it, some while it is away, the others after.
    for hang in hangs[: COUNT // 3]:
        hang.released.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(end))
        for hang in hangs[COUNT // 3 : 2 * COUNT // 3]:
            hang.released.set()
    for hang in hangs[2 * COUNT // 3 :]:
        hang.released.set()
    for name, task_id in tasks:
        await insisted(
            functools.partial(gated.env.client.await_task, name, task_id=task_id, timeout=10)
        )
