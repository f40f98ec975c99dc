"""PostgreSQL unavailable at start, or later: requests get an error, and nothing is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from progressor.sdk import BYTES, Client, NamespaceConfig
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    LONG_LEASE,
    SERVICES,
    Env,
    Replica,
    answering,
    health_becomes,
    health_of,
    open_env,
    refusal,
    running_replica,
    starting_replica,
)
from tests.support.postgres.cluster import Cluster
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture(loop_scope="module")
async def env(conninfo: str) -> AsyncIterator[Env]:
    """Return an environment on an engine whose leases outlast an absence."""
    async with running_replica(conninfo, LONG_LEASE) as replica, open_env(replica) as env:
        yield env


async def kill(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.kill)


async def bring_back(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.restart)


class TestAwayAtStart:
    @pytest_asyncio.fixture(loop_scope="module")
    async def waiting(self, mortal: Cluster, conninfo: str) -> AsyncIterator[Replica]:
        """Return an engine that waits for PostgreSQL."""
        await kill(mortal)
        async with starting_replica(conninfo) as replica:
            yield replica
        await bring_back(mortal)

    async def test_every_service_is_not_serving(self, waiting: Replica) -> None:
        assert await health_of(waiting.address) == dict.fromkeys(SERVICES, NOT_SERVING)

    async def test_every_request_is_told_that_storage_is_unavailable(
        self, waiting: Replica
    ) -> None:
        async with Client(waiting.address, namespace="n", codec=BYTES) as client:
            config = NamespaceConfig(name="n", processor_targets=("127.0.0.1:1",))
            requests: list[Any] = [
                client.start("p"),
                client.call("p"),
                client.notify("p"),
                client.repair("p"),
                client.simple_repair("p"),
                client.put("p"),
                client.remove("p"),
                client.get("p", timeout=0.5),
                client.trace("p", timeout=0.5),
                client.await_task("p", task_id=1, timeout=0.5),
                client.namespaces.create(config),
                client.replicas.activity(timeout=0.5),
            ]
            for request in requests:
                status = await refusal(request)

                assert (status.code, status.reason) == (
                    StatusCode.UNAVAILABLE,
                    "STORAGE_UNAVAILABLE",
                )
                assert status.retry_after is not None

    @pytest.mark.usefixtures("waiting")
    async def test_a_stop_ends_the_wait_for_it(self, conninfo: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), starting_replica(conninfo) as stopped:
            pass

        assert not stopped.engine.serving.is_set()

    async def test_it_serves_once_postgresql_comes(self, waiting: Replica, mortal: Cluster) -> None:
        await bring_back(mortal)
        await health_becomes(waiting.address, SERVING)

        async with open_env(waiting) as env:
            answer = await env.client.start("p", b"1")

        assert answer.response == b"1"


class TestLostLater:
    async def test_requests_are_told_and_then_served_again(self, env: Env, mortal: Cluster) -> None:
        await env.running("p")
        await kill(mortal)
        await health_becomes(env.replica.address, NOT_SERVING)
        status = await refusal(env.client.call("p", b"lost"))
        await bring_back(mortal)
        await health_becomes(env.replica.address, SERVING)
        answer = await env.client.call("p", b"1")

        assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
        assert answer.response == b"1"
        assert [event.payload for event in (await env.client.get("p")).history] == [b"1"]

    async def test_the_log_tells_once_that_it_does_not_serve_and_once_that_it_does(
        self, env: Env, mortal: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        await kill(mortal)
        await health_becomes(env.replica.address, NOT_SERVING)
        await bring_back(mortal)
        await health_becomes(env.replica.address, SERVING)

        told = [
            record.getMessage()
            for record in caplog.records
            if record.name == "progressor.engine.engine"
        ]
        assert told == ["engine does not serve", "engine serving again"]

    async def test_what_was_accepted_is_kept(self, env: Env, mortal: Cluster) -> None:
        hang, _ = await env.busy("p")
        accepted = [await env.client.call("p", b"%d" % n, accept_only=True) for n in range(5)]
        await kill(mortal)
        await bring_back(mortal)
        hang.released.set()
        await env.settled("p", 7)

        history = (await env.client.get("p")).history
        assert [event.task_id for event in history][1:] == [each.task_id for each in accepted]

    async def test_a_step_that_is_answered_meanwhile_is_settled_afterwards(
        self, env: Env, mortal: Cluster
    ) -> None:
        await env.running("p", hang := Hang())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(env.client.call("p", b"1"))
            await env.asked("p", 2)
            await kill(mortal)
            hang.released.set()
            await env.points.wait("answered", 2, key=env.key("p"))
            await bring_back(mortal)

        assert waiting.result().response == b"1"
        assert len(env.asked_for("p")) == 2
        assert (await env.client.get("p")).process.last_event_id == 1

    async def test_timers_that_came_due_meanwhile_fire_afterwards(
        self, env: Env, mortal: Cluster
    ) -> None:
        await env.timed("p", answering(b"fired"), after=0.3)
        await kill(mortal)
        await health_becomes(env.replica.address, NOT_SERVING)
        await bring_back(mortal)
        await env.settled("p", 2)

        assert [event.payload for event in (await env.client.get("p")).history] == [b"fired"]


async def test_steps_in_hand_are_retried_where_storage_is_away_for_longer_than_the_lease(
    conninfo: str, mortal: Cluster
) -> None:
    async with (
        running_replica(conninfo) as replica,
        open_env(replica, one_at_a_time=False) as env,
    ):
        await env.running("p", Hang(), Answer())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(env.client.call("p", b"1"))
            await env.asked("p", 2)
            await kill(mortal)
            await env.points.wait("abandoned", key=env.key("p"))
            await bring_back(mortal)

        assert waiting.result().response == b"1"
        assert env.asked_for("p")[2].task.attempt in {1, 2}
        assert (await env.client.get("p")).process.last_event_id == 1
