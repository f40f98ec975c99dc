"""The list of replicas: what each says of itself, and what the others make of it."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

import progressor
from progressor.runtime.upkeep import retention
from progressor.sdk import Client, ReplicaState
from progressor.sdk import Replica as Listed
from tests.support.engine.process import running_process
from tests.support.engine.replica import (
    SETTINGS,
    Env,
    Replica,
    health_becomes,
    open_env,
    running_replica,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HOUR = dt.timedelta(hours=1)
LEASE_TIMEOUT = dt.timedelta(seconds=float(SETTINGS["replica.lease_timeout_seconds"]))
RETENTION: Mapping[str, str] = {"scanner.retention_interval_seconds": "0.1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second_replica(database: str) -> AsyncIterator[Replica]:
    """Return a replica that stays, scans, and looks often for what is old enough to go."""
    async with running_replica(
        database, {**RETENTION, "replica.name": "second_replica"}
    ) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(second_replica: Replica) -> AsyncIterator[Env]:
    async with open_env(second_replica, one_at_a_time=False) as env:
        yield env


async def listed(client: Client, **options: Any) -> dict[int, Listed]:
    """Return the replicas by their ids."""
    return {replica.replica_id: replica async for replica in client.replicas.list(**options)}


async def next_beat(replica: Replica) -> None:
    """Wait for a heartbeat that began after now."""
    await replica.points.wait("beat", replica.points.count("beat") + 2)


class TestAReplicaThatServes:
    async def test_is_listed_with_what_it_is(self, second_replica: Replica, env: Env) -> None:
        before = dt.datetime.now(dt.UTC) - HOUR
        found = (await listed(env.client))[second_replica.engine.replica_id]

        assert (found.name, found.version) == ("second_replica", progressor.__version__)
        assert found.state is ReplicaState.SERVING
        assert found.functions.startswith("progressor_")
        assert before < found.started_at <= found.heartbeat_at
        assert dt.timedelta() <= found.heartbeat_age < LEASE_TIMEOUT
        assert found.lease_timeout == LEASE_TIMEOUT

    async def test_tells_the_steps_callers_and_leases_in_its_hands(
        self, second_replica: Replica, env: Env
    ) -> None:
        await env.running("p", hang := Hang())
        async with asyncio.TaskGroup() as group:
            group.create_task(env.client.call("p"))
            await env.asked("p", 2)
            await next_beat(second_replica)
            busy = (await listed(env.client))[second_replica.engine.replica_id]
            hang.released.set()
        await next_beat(second_replica)
        idle = (await listed(env.client))[second_replica.engine.replica_id]

        assert (busy.step_count, busy.caller_count, busy.lease_count) == (1, 1, 1)
        assert (idle.step_count, idle.caller_count, idle.lease_count) == (0, 0, 0)


async def test_a_replica_that_drains_says_so_and_still_tells_of_the_others(
    second_replica: Replica, env: Env, database: str
) -> None:
    await env.running("p", hang := Hang())
    async with (
        running_replica(database) as leaving,
        env.client_at(leaving.address) as there,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(there.call("p"))
        await env.asked("p", 2)
        leaving.engine.stop()
        await health_becomes(leaving.address, NOT_SERVING)
        await next_beat(leaving)
        found = await listed(there)
        hang.released.set()

    own = found[leaving.engine.replica_id]
    assert (own.state, own.draining, own.step_count) == (ReplicaState.DRAINING, True, 1)
    assert found[second_replica.engine.replica_id].state is ReplicaState.SERVING


async def test_a_replica_that_was_killed_is_silent_once_its_lease_is_over_and_then_deleted(
    second_replica: Replica,
    env: Env,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await env.running("p", Hang(), Answer())
    async with (
        running_process(database, tmp_path, {"replica.name": "victim"}) as victim,
        env.client_at(victim.address) as there,
    ):
        accepted = await there.call("p", accept_only=True)
        await env.asked("p", 2)
        victim.kill()
        await second_replica.points.wait("zombie_collected", task_id=accepted.task_id)
    (dead,) = [each for each in (await listed(env.client)).values() if each.name == "victim"]

    monkeypatch.setattr(retention, "REPLICAS_AGE", LEASE_TIMEOUT)
    looked = second_replica.points.count("scanned", scan="retention")
    await second_replica.points.wait("scanned", looked + 2, scan="retention")
    afterwards = await listed(env.client)

    assert (dead.state, dead.lease_count) == (ReplicaState.SILENT, 0)
    assert dead.heartbeat_age > dead.lease_timeout
    assert dead.replica_id not in afterwards
    assert second_replica.engine.replica_id in afterwards
