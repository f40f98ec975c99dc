"""A clean stop: running work ends here or on another replica, and the callers get an answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from progressor import errors
from progressor.sdk import BYTES, Client
from progressor.sdk.transport.failures import read_status
from progressor.v1.process_service_pb2 import AwaitTaskRequest, CallRequest
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import (
    Env,
    Replica,
    health_becomes,
    open_env,
    refusal,
    running_replica,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CROWD = 100
IMPATIENT = {"server.drain_timeout_seconds": "0.3"}


@pytest_asyncio.fixture(loop_scope="module")
async def env(second_replica: Replica) -> AsyncIterator[Env]:
    async with open_env(second_replica) as env:
        yield env


async def all_wait(env: Env, process_id: str, count: int) -> None:
    """Return once so many calls of a process wait behind the one in hand."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        waiting = 0
        while waiting < count:
            trace = await env.client.trace(process_id, page_size=1000)
            waiting = len(trace.tasks) - 2


async def end_of(request: Awaitable[object]) -> tuple[StatusCode, str]:
    """Return how a request, in a session or by itself, was refused."""
    try:
        status = await refusal(request)
    except grpc.aio.AioRpcError as error:
        status = read_status(error, "")
    return status.code, status.reason


async def ask_until_gone(client: Client, *, first: bool) -> set[str]:
    """Repeat requests at once until no server answers; return why requests failed."""
    why: set[str] = set()
    while "ENGINE_UNAVAILABLE" not in why:  # ends once the replica has left
        try:
            await (client.call("p") if first else client.remove("no such process"))
        except errors.ProcessNotFoundError:
            continue
        except errors.ProgressorError as error:
            why.add(error.reason)
    return why


class TestSigterm:
    async def test_with_a_step_in_hand_lets_it_settle_and_answers_its_caller(
        self, env: Env, database: str, tmp_path: Path
    ) -> None:
        await env.running("p", hang := Hang())
        async with (
            running_process(database, tmp_path) as leaving,
            env.client_at(leaving.address) as there,
            asyncio.TaskGroup() as group,
        ):
            waiting = group.create_task(there.call("p", b"1"))
            await env.asked("p", 2)
            leaving.terminate()
            await health_becomes(leaving.address, NOT_SERVING)
            hang.released.set()
            left = await leaving.left()

        assert (left, waiting.result().response) == (0, b"1")
        assert len(env.asked_for("p")) == 2

    async def test_with_a_step_longer_than_the_drain_hands_its_lease_back_at_once(
        self, second_replica: Replica, database: str, tmp_path: Path
    ) -> None:
        async with open_env(second_replica, one_at_a_time=False) as env:
            await env.running("p", Hang(), Answer())
            async with (
                running_process(database, tmp_path, IMPATIENT) as leaving,
                env.client_at(leaving.address) as there,
                asyncio.TaskGroup() as group,
            ):
                told = group.create_task(refusal(there.call("p", b"1")))
                await env.asked("p", 2)
                leaving.terminate()
                await env.asked("p", 3)
                left = await leaving.left()

            task = env.asked_for("p")[1].task
            answer = await env.client.await_task("p", task_id=task.task_id)
            assert left == 0
            assert (told.result().code, told.result().reason) == (
                StatusCode.UNAVAILABLE,
                "REPLICA_STOPPED",
            )
            assert answer.response == b"1"
            # Its first attempt is not counted; a zombie's would be.
            assert env.asked_for("p")[2].task.attempt == 1
            assert second_replica.points.count("zombie_collected", task_id=task.task_id) == 0

    async def test_tells_everyone_who_still_waits_that_it_has_stopped(
        self, env: Env, database: str, tmp_path: Path
    ) -> None:
        await env.running("p", hang := Hang())
        async with (
            running_process(database, tmp_path, IMPATIENT) as leaving,
            env.client_at(leaving.address) as there,
            grpc.aio.insecure_channel(leaving.address) as channel,
        ):
            stub = ProcessServiceStub(channel)
            first = await there.call("p", accept_only=True)
            named: dict[str, Any] = {"namespace": env.namespace, "process_id": "p"}
            async with asyncio.TaskGroup() as group:
                told = [
                    group.create_task(end_of(request))
                    for _ in range(CROWD)
                    for request in (
                        there.call("p"),
                        stub.Call(CallRequest(**named)),
                        stub.AwaitTask(AwaitTaskRequest(**named, task_id=first.task_id)),
                    )
                ]
                await all_wait(env, "p", 2 * CROWD)
                leaving.terminate()
            left = await leaving.left()
        hang.released.set()

        assert left == 0
        assert {each.result() for each in told} == {(StatusCode.UNAVAILABLE, "REPLICA_STOPPED")}

    async def test_under_requests_that_never_pause_is_never_a_surprise(
        self, env: Env, database: str, tmp_path: Path
    ) -> None:
        await env.running("p", Answer())
        async with (
            running_process(database, tmp_path) as leaving,
            Client(
                leaving.address, namespace=env.namespace, codec=BYTES, session=False, timeout=1.0
            ) as there,
            asyncio.TaskGroup() as group,
        ):
            asking = [
                group.create_task(ask_until_gone(there, first=number == 0)) for number in range(50)
            ]
            await env.asked("p", 20)
            leaving.terminate()
            left = await leaving.left()

        assert left == 0
        assert set.union(*(each.result() for each in asking)) <= {
            "SHUTTING_DOWN",
            "REPLICA_STOPPED",
            "ENGINE_UNAVAILABLE",
        }

    async def test_hands_on_the_calls_behind_the_step_in_hand(
        self, env: Env, database: str, tmp_path: Path
    ) -> None:
        await env.running("p", hang := Hang())
        async with (
            running_process(database, tmp_path) as leaving,
            env.client_at(leaving.address) as there,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(there.call("p", b"1"))
            await env.asked("p", 2)
            behind = [await there.call("p", b"%d" % n, accept_only=True) for n in (2, 3)]
            leaving.terminate()
            await health_becomes(leaving.address, NOT_SERVING)
            hang.released.set()
            left = await leaving.left()
        answers = [
            (await env.client.await_task("p", task_id=each.task_id)).response for each in behind
        ]

        assert (left, answers) == (0, [b"2", b"3"])
        assert [request.task.args for request in env.asked_for("p")][1:] == [b"1", b"2", b"3"]

    async def test_without_work_leaves_at_once(self, database: str, tmp_path: Path) -> None:
        async with running_process(
            database, tmp_path, {"server.drain_timeout_seconds": "600"}
        ) as leaving:
            leaving.terminate()

            assert await leaving.left() == 0


class TestWhileDraining:
    @pytest_asyncio.fixture(loop_scope="module")
    async def draining(self, env: Env, database: str) -> AsyncIterator[Replica]:
        """Return a replica that drains, held up by a step on ``p``."""
        async with running_replica(database) as replica:
            await env.running("p", hang := Hang())
            async with env.client_at(replica.address) as there, asyncio.TaskGroup() as group:
                group.create_task(there.call("p"))
                await env.asked("p", 2)
                replica.engine.stop()
                await health_becomes(replica.address, NOT_SERVING)
                yield replica
                hang.released.set()

    async def test_new_work_is_sent_elsewhere(self, draining: Replica, env: Env) -> None:
        async with env.client_at(draining.address) as there:
            for request in (there.start("q"), there.call("p"), there.remove("p")):
                status = await refusal(request)

                assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
                assert status.retry_after is not None
