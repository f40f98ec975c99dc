"""How steps in calls of their own reach the engine: by StepService, or on the engine's stream."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from progressor import errors
from progressor.internal.v1 import frames_pb2
from progressor.sdk import BYTES, Fail, Processor, Step
from progressor.sdk.processor import streaming
from progressor.sdk.processor.links import Engine, ServiceLink
from progressor.sdk.processor.requests import StepRequests
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import step_service_pb2 as service
from progressor.v1 import types_pb2 as types
from progressor.v1.processor_service_pb2_grpc import ProcessorServiceStub
from tests.unit.sdk.scripted_engine import refusal, scripted_engine

AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
UNKNOWN = refusal(grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND", namespace="orders")
LOST = refusal(grpc.StatusCode.ABORTED, "LEASE_LOST")
EXTENDED, STORED = service.ExtendResponse(), service.RememberResponse()
STREAM = "/progressor.v1.ProcessorService/ProcessStream"


async def test_the_engine_is_probed_before_a_function_until_it_has_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And again once a request has failed. The log has one line for the failures in a row."""
    ran: list[str] = []
    script = [AWAY, AWAY, EXTENDED, STORED, STORED, AWAY, STORED, UNKNOWN, LOST, EXTENDED, STORED]
    async with scripted_engine(*script) as scripted:
        engine = Engine(scripted.address)

        async def once(*keys: str) -> None:
            requests = StepRequests(pb.ProcessRequest(), BYTES, ServiceLink(engine, ASKED))
            for key in keys:
                await requests.once(key, ran.append, (key,), bytes | None)

        with caplog.at_level(logging.WARNING):
            await once("probed", "not probed", "stored at last")
            with pytest.raises(Fail, match="'refused' cannot be stored"):
                await once("refused")
            with pytest.raises(errors.LeaseLostError):
                await once("given up")
            await once("probed again")
        await engine.close()

    assert ran == ["probed", "not probed", "stored at last", "refused", "probed again"]
    assert [type(it).__name__[0] for it in scripted.requests] == list("EEERRRRREER")
    assert len(caplog.records) == 3


ASKED = pb.ProcessRequest(
    process=types.Process(namespace="orders", process_id="p"),
    task=pb.ProcessorTask(task_id=1, token=1, type=types.TASK_TYPE_CALL, args=b'"a"'),
)


async def test_a_step_in_a_call_of_its_own_asks_on_the_stream_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream stays open for it in a drain. Without the stream, no function runs."""
    monkeypatch.setattr(streaming, "_CROSSING_SECONDS", 0.05)
    released, leave = asyncio.Event(), asyncio.Event()
    ran: list[str] = []
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    processor: Processor[Any] = Processor("orders")

    @processor.call
    async def work(step: Step[Any]) -> None:
        await step.once("a", ran.append, "a")
        await released.wait()
        await step.once("b", ran.append, "b")

    async def serve() -> None:
        async with processor.running("127.0.0.1:0") as address:
            bound.set_result(address)
            await leave.wait()

    def named(stream: str) -> tuple[tuple[str, str], ...]:
        return ("progressor-stream", stream), ("progressor-step-id", "7")

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(serve())
        async with grpc.aio.insecure_channel(await bound) as channel:
            stub: Any = ProcessorServiceStub(channel)
            lost = await stub.Process(ASKED, metadata=named("none"))
            asked = asyncio.ensure_future(stub.Process(ASKED, metadata=named("s")))
            stream: Any = channel.stream_stream(STREAM)(metadata=named("s")[:1])

            async def next_frame() -> frames_pb2.StepAnswersFrame:
                return frames_pb2.StepAnswersFrame.FromString(await stream.read())

            async def store(frame: frames_pb2.StepAnswersFrame) -> tuple[int, str]:
                [call] = frame.calls
                result = frames_pb2.RawStepCallResult(call_id=call.call_id, remember=b"")
                await stream.write(frames_pb2.StepsFrame(results=[result]).SerializeToString())
                return call.step_id, pb.RememberCall.FromString(call.remember).key

            stored = [await store(await next_frame())]
            # A stream without guests would end at once.
            monkeypatch.setattr(streaming, "_CROSSING_SECONDS", 0)
            leave.set()
            assert (await next_frame()).draining
            released.set()
            stored.append(await store(await next_frame()))
            response = await asked
            end = await stream.read()

    assert (stored, ran) == ([(7, "a"), (7, "b")], ["a", "b"])
    assert lost.failure.reason == "LEASE_LOST"
    assert (response, end) == (pb.ProcessResponse(), grpc.aio.EOF)
