"""The level of a replica's log, changed over the wire and on the command line."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from progressor.cli.output import ExitCode
from progressor.v1 import process_service_pb2
from progressor.v1 import replica_service_pb2 as pb
from tests.support.api.memory import SECOND
from tests.support.api.scripted_engine import Cli, ScriptedEngine
from tests.support.api.server import Engine, failure, violations_of
from tests.support.builders import seconds

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def to_debug(lasting_seconds: int = 0) -> pb.SetLogLevelRequest:
    request = pb.SetLogLevelRequest(level=pb.LOG_LEVEL_DEBUG)
    request.lasting.FromSeconds(lasting_seconds)
    return request


class TestOverTheWire:
    async def test_a_change_is_made_and_answered_with_what_was_and_where(self, api: Engine) -> None:
        answer = await api.replica_service.SetLogLevel(to_debug(600))

        assert api.log_levels.asked == [("debug", seconds(600))]
        assert answer == pb.SetLogLevelResponse(
            previous_level=pb.LOG_LEVEL_INFO, replica_name="host-1"
        )

    async def test_a_bad_level_is_refused_by_its_field(self, api: Engine) -> None:
        error = await failure(api.replica_service.SetLogLevel(pb.SetLogLevelRequest()))

        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violations_of(error) == {"level": "unknown log level 0"}
        assert api.log_levels.asked == []

    async def test_a_replica_that_drains_can_still_be_asked(self, api: Engine) -> None:
        request = process_service_pb2.CallRequest(namespace="orders", process_id="1", args=b"hang")

        async def ask() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await api.process_service.Call(request)

        stub: Any = health_pb2_grpc.HealthStub(api.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        begun = (await watch.read()).status
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(), name="hanging call")
            await api.requests.asked.wait()
            group.create_task(api.server.drain(30 * SECOND), name="drain")
            left = (await watch.read()).status
            await api.replica_service.SetLogLevel(to_debug())
            api.requests.release.set()

        assert (begun, left) == (SERVING, NOT_SERVING)
        assert len(api.log_levels.asked) == 1


@pytest.fixture
def told(engine: ScriptedEngine) -> None:
    """Have the engine answer."""
    engine.answers["SetLogLevel"] = pb.SetLogLevelResponse(
        previous_level=pb.LOG_LEVEL_INFO, replica_name="host-1"
    )


@pytest.mark.usefixtures("told")
class TestOnTheCommandLine:
    def test_a_change_for_a_while_is_told_with_what_was(
        self, cli: Cli, engine: ScriptedEngine
    ) -> None:
        ended = cli("log-level", "debug", "--for", "10m")

        assert (ended.code, ended.out) == (0, "host-1: debug, for 10m (it was info)\n")
        assert engine.requests == [to_debug(600)]

    def test_a_document_has_all_of_it(self, cli: Cli) -> None:
        assert cli("log-level", "error", "--json").document == {
            "replica_name": "host-1",
            "level": "error",
            "previous_level": "info",
            "lasting_seconds": 0,
        }

    @pytest.mark.parametrize(
        "arguments", [["loud"], ["debug", "--for", "ten"], ["debug", "--for", "-1s"], []]
    )
    def test_what_cannot_be_is_asked_of_nobody(
        self, cli: Cli, engine: ScriptedEngine, arguments: list[str]
    ) -> None:
        ended = cli("log-level", *arguments)

        assert ended.code == ExitCode.USAGE
        assert engine.requests == []
