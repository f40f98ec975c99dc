"""A clean stop in the middle of a claim: what PostgreSQL leased meanwhile is handed back.

Only the replica that leaves knows of such a lease. Left behind, it is a zombie at once, and
by the policy *fail* it breaks its process.
"""

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from progressor.sdk import Client, ZombiePolicy
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    running_replica,
    timer,
)
from tests.support.faults.env import LEASED, rows, until
from tests.support.faults.faults import Fault, stalled_after
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import Answer, Hang, ScriptedProcessor
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CLAIM_TASKS, CLAIM_DUE = '"claim_tasks"(', '"claim_due"('
LEAVING: Mapping[str, str] = {
    "replica.lease_timeout_seconds": "30",
    "scanner.interval_seconds": "3600",
}
"""For a replica whose leases outlast a stall, and that claims nothing by a scan."""

PATIENT: Mapping[str, str] = {
    "replica.lease_timeout_seconds": "600",
    "server.drain_timeout_seconds": "60",
}
"""For a replica that loses no lease on a machine that stands still for a while."""

RESTARTS = int(os.environ.get("RESTARTS", "6"))
PROCESS_COUNT = 200
SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 0.5

TASKS = "SELECT task_id, attempt_count FROM progressor.tasks WHERE namespace = %(namespace)s"
BROKEN = """
    SELECT process_id, detail FROM progressor.processes
    WHERE namespace = %(namespace)s AND status = 'error'"""


@pytest_asyncio.fixture(loop_scope="module")
async def second_replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


@pytest.fixture
def way(database: str) -> Iterator[Proxy]:
    with running_proxy(database) as opened:
        yield opened


async def claim_of_a_timer(env: Env, there: Client, way: Proxy) -> Fault:
    """Have a claim by id in flight; only the replica that leaves knows when it is due."""
    stall = way.arm(stalled_after(CLAIM_TASKS))
    env.processor.on_process("p", answering(set_timer=timer(0.1)), Answer())
    await there.start("p")
    return stall


async def claim_of_a_backlog(env: Env, there: Client, way: Proxy) -> Fault:
    """Have a claim by search in flight: of what was due while the only worker was busy."""
    await env.running("p", Answer())
    await env.running("busy", hang := Hang())
    await there.call("busy", accept_only=True)
    await env.asked("busy", 2)
    stall = way.arm(stalled_after(CLAIM_DUE))
    await there.call("p", accept_only=True)
    hang.released.set()
    return stall


@pytest.mark.parametrize("claim", [claim_of_a_timer, claim_of_a_backlog])
async def test_a_claim_in_flight_at_a_clean_stop_is_handed_back(
    second_replica: Replica,
    way: Proxy,
    observer: psycopg.Connection[Any],
    claim: Callable[[Env, Client, Proxy], Awaitable[Fault]],
) -> None:
    before = second_replica.points.count("zombie_collected")
    options = {"zombie_policy": ZombiePolicy.FAIL, "worker_count_max": 1}
    async with judged_env(second_replica, **options) as env:
        async with (
            running_replica(way.conninfo, LEAVING) as leaving,
            env.client_at(leaving.address) as there,
        ):
            stall = await claim(env, there, way)
            await stall.struck()
            # Watched from before: a drain with nothing in hand soon listens no more.
            async with grpc.aio.insecure_channel(leaving.address) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
                assert (await watch.read()).status == SERVING
                leaving.engine.stop()
                assert (await watch.read()).status == NOT_SERVING
                way.restore()

        await env.asked("p", 2)
        await until(env.points, lambda: not rows(observer, env, LEASED))
        # A step that was handed back has not begun; a zombie's attempt would count.
        assert {count for _, count in rows(observer, env, TASKS)} == {1}
        assert rows(observer, env, BROKEN) == []
        assert env.asked_for("p")[1].task.attempt == 1
        assert second_replica.points.count("zombie_collected") == before


async def test_clean_restarts_under_a_load_of_timers_leave_no_lease_behind(
    database: str, observer: psycopg.Connection[Any], chance: random.Random
) -> None:
    collected, left_behind = 0, []
    async with ScriptedProcessor() as processor:
        for number in range(RESTARTS):
            async with running_replica(database, PATIENT) as replica:
                if number == 0:
                    await begin_load(replica, processor, chance)
                asked = len(processor.requests)
                await processor.received(asked + PROCESS_COUNT, seconds=PATIENCE_SECONDS)
            left_behind += observer.execute("SELECT * FROM progressor.running").fetchall()
            collected += replica.points.count("zombie_collected")

        broken = observer.execute(
            "SELECT * FROM progressor.processes WHERE status = 'error'"
        ).fetchall()
        await end_load(database)

    assert (left_behind, collected, broken) == ([], 0, [])


async def begin_load(replica: Replica, processor: ScriptedProcessor, chance: random.Random) -> None:
    """Start processes that set a timer at each step, for ever."""
    options = {"zombie_policy": ZombiePolicy.FAIL}
    async with replica.namespace("load", processor.target, **options) as client:
        for number in range(PROCESS_COUNT):
            seconds = chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
            processor.on_process(f"p{number}", answering(set_timer=timer(seconds)))
            await client.start(f"p{number}", accept_only=True)


async def end_load(database: str) -> None:
    """Remove the processes; without a replica their timers would all be overdue."""
    async with running_replica(database) as replica, Client(replica.address) as client:
        for number in range(PROCESS_COUNT):
            await client.remove(f"p{number}", namespace="load")
