"""A clean stop: what is in hand ends here or on another replica, and the callers are told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from tests.support.processor import Answer, Hang
from tests.support.replica import (
    SERVICES,
    Replica,
    Stage,
    health_becomes,
    health_of,
    open_stage,
    refusal,
    running_process,
    running_replica,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
IMPATIENT = {"server.drain_timeout_seconds": "0.3"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor(database: str) -> AsyncIterator[Replica]:
    """Return a replica that stays, and scans."""
    async with running_replica(database) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def stage(survivor: Replica) -> AsyncIterator[Stage]:
    async with open_stage(survivor) as stage:
        yield stage


class TestSigterm:
    async def test_with_a_step_in_hand_lets_it_settle_and_answers_its_caller(
        self, stage: Stage, database: str, tmp_path: Path
    ) -> None:
        await stage.running("p", hang := Hang())
        async with (
            running_process(database, tmp_path) as leaving,
            stage.client_at(leaving.address) as there,
            asyncio.TaskGroup() as group,
        ):
            waiting = group.create_task(there.call("p", b"1"))
            await stage.asked("p", 2)
            leaving.terminate()
            await health_becomes(leaving.address, NOT_SERVING)
            hang.released.set()
            left = await leaving.left()

        assert (left, waiting.result().response) == (0, b"1")
        assert len(stage.asked_for("p")) == 2

    async def test_with_a_step_longer_than_the_drain_hands_its_lease_back_at_once(
        self, survivor: Replica, database: str, tmp_path: Path
    ) -> None:
        async with open_stage(survivor, one_at_a_time=False) as stage:
            await stage.running("p", Hang(), Answer())
            async with (
                running_process(database, tmp_path, IMPATIENT) as leaving,
                stage.client_at(leaving.address) as there,
                asyncio.TaskGroup() as group,
            ):
                told = group.create_task(refusal(there.call("p", b"1")))
                await stage.asked("p", 2)
                leaving.terminate()
                await stage.asked("p", 3)
                left = await leaving.left()

            task = stage.asked_for("p")[1].task
            answer = await stage.client.await_task("p", task_id=task.task_id)
            assert left == 0
            assert (told.result().code, told.result().reason) == (
                StatusCode.UNAVAILABLE,
                "SHUTTING_DOWN",
            )
            assert answer.response == b"1"
            # Its first attempt is not counted; a zombie's would be.
            assert stage.asked_for("p")[2].task.attempt == 1
            assert survivor.points.count("zombie_collected", task_id=task.task_id) == 0

    async def test_hands_on_the_calls_behind_the_step_in_hand(
        self, stage: Stage, database: str, tmp_path: Path
    ) -> None:
        await stage.running("p", hang := Hang())
        async with (
            running_process(database, tmp_path) as leaving,
            stage.client_at(leaving.address) as there,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(there.call("p", b"1"))
            await stage.asked("p", 2)
            behind = [await there.call("p", b"%d" % n, accept_only=True) for n in (2, 3)]
            leaving.terminate()
            await health_becomes(leaving.address, NOT_SERVING)
            hang.released.set()
            left = await leaving.left()
        answers = [
            (await stage.client.await_task("p", task_id=each.task_id)).response for each in behind
        ]

        assert (left, answers) == (0, [b"2", b"3"])
        assert [it.task.args for it in stage.asked_for("p")][1:] == [b"1", b"2", b"3"]

    async def test_without_work_leaves_at_once(self, database: str, tmp_path: Path) -> None:
        async with running_process(
            database, tmp_path, {"server.drain_timeout_seconds": "600"}
        ) as leaving:
            leaving.terminate()

            assert await leaving.left() == 0


class TestWhileDraining:
    @pytest_asyncio.fixture(loop_scope="module")
    async def draining(self, stage: Stage, database: str) -> AsyncIterator[Replica]:
        """Return a replica that drains, held up by a step on ``p``."""
        async with running_replica(database) as replica:
            await stage.running("p", hang := Hang())
            async with stage.client_at(replica.address) as there, asyncio.TaskGroup() as group:
                group.create_task(there.call("p"))
                await stage.asked("p", 2)
                replica.engine.stop()
                await health_becomes(replica.address, NOT_SERVING)
                yield replica
                hang.released.set()

    async def test_new_work_is_sent_elsewhere(self, draining: Replica, stage: Stage) -> None:
        async with stage.client_at(draining.address) as there:
            for request in (there.start("q"), there.call("p"), there.remove("p")):
                status = await refusal(request)

                assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
                assert status.retry_after is not None

    async def test_reads_are_served(self, draining: Replica, stage: Stage) -> None:
        async with stage.client_at(draining.address) as there:
            snapshot = await there.get("p")

        assert snapshot.process.process_id == "p"

    async def test_every_service_is_not_serving(self, draining: Replica) -> None:
        assert await health_of(draining.address) == dict.fromkeys(SERVICES, NOT_SERVING)


async def test_a_replica_that_runs_says_of_every_service_that_it_serves(
    survivor: Replica,
) -> None:
    assert await health_of(survivor.address) == dict.fromkeys(SERVICES, SERVING)


async def test_a_service_that_there_is_not_has_no_health(survivor: Replica) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_of(survivor.address, ["no.such.Service"])

    assert caught.value.code() is StatusCode.NOT_FOUND
