"""PostgreSQL ends while gates are held and lines wait: afterwards everything passes, by itself."""

import asyncio
import dataclasses

import psycopg
import pytest

from tests.support.engine.gates import Gated, constraints, open_gated, watched_gates
from tests.support.engine.replica import Replica
from tests.support.faults.disasters import ENDS
from tests.support.faults.env import asked_twice, insist
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAPACITY = 3
COUNT = 30


@pytest.mark.parametrize("end", ENDS)
async def test_whoever_holds_and_whoever_waits_passes_afterwards(
    replicas: tuple[Replica, Replica], mortal: Cluster, conninfo: str, end: str
) -> None:
    here, there = replicas
    with watched_gates(conninfo):
        async with open_gated(conninfo, here, there.address, one_at_a_time=False) as gated:
            names = [f"p{number}" for number in range(COUNT)]
            hangs = await gated.held(*names)
            tasks = await in_line(gated, names)
            # Some are answered before it, some while it is away, the others after.
            before, meanwhile, after = hangs[:10], hangs[10:20], hangs[20:]
            for hang in before:
                hang.released.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.to_thread(ENDS[end], mortal, conninfo))
                for hang in meanwhile:
                    hang.released.set()
            for hang in after:
                hang.released.set()
            for name, task_id in tasks:
                await insist(gated.env.client.await_task, name, task_id=task_id, timeout=10)
            with psycopg.connect(conninfo, autocommit=True) as observer:
                judged = dataclasses.replace(gated, observer=observer)
                await judged.at_rest()
                assert judged.settled_at_once() <= CAPACITY
            assert asked_twice(gated.env) == []


async def in_line(gated: Gated, names: list[str]) -> list[tuple[str, int]]:
    """Have processes want the gate and one of a few others, until the first hold it."""
    tasks = [
        (name, await gated.call(name, constraints("gate", f"db{number % 5}", capacity=CAPACITY)))
        for number, name in enumerate(names)
    ]
    for name in names[:CAPACITY]:
        await gated.has_begun(name)
    return tasks
