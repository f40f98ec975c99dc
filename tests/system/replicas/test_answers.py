"""Several replicas on one database: an answer finds its caller, whichever replica has it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from tests.support.engine.replica import (
    QUIET,
    Env,
    Replica,
    broken,
    open_env,
    refusal,
    response,
    running_replica,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAFETY_NET = "progressor.runtime.effects.replies._SAFETY_SECONDS"


@pytest.fixture(scope="module")
def no_safety_net() -> Iterator[None]:
    """Keep the slow round over the waiting callers from ever finding an answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SAFETY_NET, 3600.0)
        yield


class Trio:
    """Three replicas that never scan, on one database."""

    def __init__(self, *replicas: Replica) -> None:
        self.a, self.b, self.c = replicas


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trio(database: str, no_safety_net: None) -> AsyncIterator[Trio]:  # noqa: ARG001
    async with (
        running_replica(database, QUIET) as a,
        running_replica(database, QUIET) as b,
        running_replica(database, QUIET) as c,
    ):
        yield Trio(a, b, c)
        assert [each.points.count("scan_found") for each in (a, b, c)] == [0, 0, 0]


@pytest_asyncio.fixture(loop_scope="module")
async def at_b(trio: Trio) -> AsyncIterator[Env]:
    """Return an environment whose client talks to replica B, which carries what it starts."""
    async with open_env(trio.b) as env:
        yield env


class TestAnswers:
    async def test_of_a_step_on_b_reach_the_caller_in_line_on_a_by_notification(
        self, trio: Trio, at_b: Env
    ) -> None:
        hang, _ = await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(on_a.call("p", b"2"))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            hang.released.set()

        answer = waiting.result()
        assert answer.response == b"2"
        assert trio.a.points.count("reply_fetched", task_id=answer.task_id) == 1
        assert trio.b.points.count("settled", task_id=answer.task_id) == 1

    async def test_reach_await_task_on_a_third(self, trio: Trio, at_b: Env) -> None:
        hang, _ = await at_b.busy("p")
        async with (
            at_b.client_at(trio.a.address) as on_a,
            at_b.client_at(trio.c.address) as on_c,
            asyncio.TaskGroup() as group,
        ):
            accepted = await on_a.call("p", b"2", accept_only=True)
            awaited = group.create_task(on_c.await_task("p", task_id=accepted.task_id))
            await trio.c.points.wait("awaited", key=at_b.key("p"))
            hang.released.set()

        assert awaited.result().response == b"2"
        assert trio.c.points.count("reply_fetched", task_id=accepted.task_id) == 1

    @pytest.mark.parametrize(
        ("ending", "reason"),
        [
            pytest.param(broken().response, "PROCESS_FAILED", id="breaks the process"),
            pytest.param(response(complete=Complete()), "PROCESS_FINISHED", id="completes it"),
            pytest.param(response(remove=RemoveProcess()), "PROCESS_REMOVED", id="removes it"),
        ],
    )
    async def test_reach_the_caller_on_a_also_where_the_step_on_b(
        self, trio: Trio, at_b: Env, ending: Any, reason: str
    ) -> None:
        hang, _ = await at_b.busy("p", answer=ending)
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(on_a.call("p", b"2")))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            hang.released.set()

        assert waiting.result().reason == reason

    async def test_are_found_when_the_listening_connection_was_cut(
        self, trio: Trio, at_b: Env, database: str
    ) -> None:
        hang, _ = await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(on_a.call("p", b"2"))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            await cut_listener(database, trio.a)
            hang.released.set()

        assert waiting.result().response == b"2"


async def cut_listener(database: str, replica: Replica) -> None:
    """End the session in which a replica listens."""
    channel = f"LISTEN progressor_{replica.engine.replica_id}"
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query = %s",
            [channel],
        )


class TestRemoveOnAnotherReplica:
    async def test_tells_the_caller_in_line(self, trio: Trio, at_b: Env) -> None:
        await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(on_a.call("p", b"2")))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            await at_b.client.remove("p")

        assert (waiting.result().code, waiting.result().reason) == (
            StatusCode.ABORTED,
            "PROCESS_REMOVED",
        )

    async def test_stops_the_step_in_flight(self, trio: Trio, at_b: Env) -> None:
        _, task_id = await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a:
            await on_a.remove("p")
            await trio.b.points.wait("revoked", task_id=task_id)

            assert (await refusal(on_a.get("p"))).reason == "PROCESS_NOT_FOUND"
