"""PostgreSQL unavailable at start, or later: requests get an error, and nothing is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from progressor.sdk import BYTES, Client, NamespaceConfig
from progressor.storage.postgres.migrations import migrate
from tests.support.points import PATIENCE_SECONDS
from tests.support.postgres import Cluster, own_cluster
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    LONG_LEASE,
    SERVICES,
    Replica,
    Stage,
    answering,
    health_becomes,
    health_of,
    open_stage,
    refusal,
    running_replica,
    starting_replica,
    timer,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def conninfo(mortal: Cluster) -> str:
    created = mortal.create_database()
    migrate(created)
    return created


@pytest_asyncio.fixture(loop_scope="module")
async def stage(conninfo: str) -> AsyncIterator[Stage]:
    """Return a stage on an engine whose leases outlast an absence."""
    async with running_replica(conninfo, LONG_LEASE) as replica, open_stage(replica) as stage:
        yield stage


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

        async with open_stage(waiting) as stage:
            answer = await stage.client.start("p", b"1")

        assert answer.response == b"1"


class TestLostLater:
    async def test_requests_are_told_and_then_served_again(
        self, stage: Stage, mortal: Cluster
    ) -> None:
        await stage.running("p")
        await kill(mortal)
        await health_becomes(stage.replica.address, NOT_SERVING)
        status = await refusal(stage.client.call("p", b"lost"))
        await bring_back(mortal)
        await health_becomes(stage.replica.address, SERVING)
        answer = await stage.client.call("p", b"1")

        assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
        assert answer.response == b"1"
        assert [it.payload for it in (await stage.client.get("p")).history] == [b"1"]

    async def test_the_log_tells_once_that_it_does_not_serve_and_once_that_it_does(
        self, stage: Stage, mortal: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        await kill(mortal)
        await health_becomes(stage.replica.address, NOT_SERVING)
        await bring_back(mortal)
        await health_becomes(stage.replica.address, SERVING)

        told = [it.getMessage() for it in caplog.records if it.name == "progressor.engine.engine"]
        assert told == ["engine does not serve", "engine serves again"]

    async def test_what_was_accepted_is_kept(self, stage: Stage, mortal: Cluster) -> None:
        hang, _ = await stage.busy("p")
        accepted = [await stage.client.call("p", b"%d" % n, accept_only=True) for n in range(5)]
        await kill(mortal)
        await bring_back(mortal)
        hang.released.set()
        await stage.settled("p", 7)

        history = (await stage.client.get("p")).history
        assert [event.task_id for event in history][1:] == [each.task_id for each in accepted]

    async def test_a_step_that_is_answered_meanwhile_is_settled_afterwards(
        self, stage: Stage, mortal: Cluster
    ) -> None:
        await stage.running("p", hang := Hang())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(stage.client.call("p", b"1"))
            await stage.asked("p", 2)
            await kill(mortal)
            hang.released.set()
            await stage.points.wait("answered", 2, key=stage.key("p"))
            await bring_back(mortal)

        assert waiting.result().response == b"1"
        assert len(stage.asked_for("p")) == 2
        assert (await stage.client.get("p")).process.last_event_id == 1

    async def test_callers_with_keys_are_all_answered_once_over_a_restart(
        self, stage: Stage, mortal: Cluster
    ) -> None:
        names = [f"p{number}" for number in range(10)]
        for name in names:
            await stage.running(name)

        async def call(name: str, number: int) -> bytes:
            answer = await stage.client.call(
                name, b"%d" % number, idempotency_key=f"k{number}", timeout=30
            )
            response: bytes = answer.response
            return response

        async with asyncio.TaskGroup() as group:
            calls = {
                number: group.create_task(call(names[number % 10], number)) for number in range(200)
            }
            await stage.asked("p0", 2)
            await kill(mortal)
            await bring_back(mortal)

        assert all(task.result() == b"%d" % number for number, task in calls.items())
        for name in names:
            history = (await stage.client.get(name)).history
            assert [event.event_id for event in history] == list(range(1, 21))
            assert len({event.payload for event in history}) == 20

    async def test_timers_that_came_due_meanwhile_fire_afterwards(
        self, stage: Stage, mortal: Cluster
    ) -> None:
        await stage.timed("p", answering(b"fired"), after=0.3)
        await kill(mortal)
        await health_becomes(stage.replica.address, NOT_SERVING)
        await bring_back(mortal)
        await stage.settled("p", 2)

        assert [it.payload for it in (await stage.client.get("p")).history] == [b"fired"]

    async def test_broken_connections_cost_no_step(self, stage: Stage, conninfo: str) -> None:
        names = [f"p{number}" for number in range(10)]
        for name in names:
            stage.processor.on_process(
                name, *[answering(b"tick", set_timer=timer())] * 30, answering(b"last")
            )
            await stage.client.start(name, accept_only=True)
        await stage.asked("p9", 5)
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        for name in names:
            await stage.settled(name, 31)

            history = (await stage.client.get(name)).history
            assert [event.event_id for event in history] == list(range(1, 32))


class TestLostForLongerThanTheLease:
    async def test_steps_in_hand_are_abandoned_and_tried_again(
        self, conninfo: str, mortal: Cluster
    ) -> None:
        async with (
            running_replica(conninfo) as replica,
            open_stage(replica, one_at_a_time=False) as stage,
        ):
            await stage.running("p", Hang(), Answer())
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(stage.client.call("p", b"1"))
                await stage.asked("p", 2)
                await kill(mortal)
                await stage.points.wait("abandoned", key=stage.key("p"))
                await bring_back(mortal)

            assert waiting.result().response == b"1"
            assert stage.asked_for("p")[2].task.attempt in {1, 2}
            assert (await stage.client.get("p")).process.last_event_id == 1
