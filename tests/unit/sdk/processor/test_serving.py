"""Processors on a real socket: routing, health, reflection, drain."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from progressor.sdk import Limits, Processor, Step, running, serve_async
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.v1.processor_service_pb2_grpc import ProcessorServiceStub

if TYPE_CHECKING:  # the class is in the stub file only
    from progressor.v1.processor_service_pb2_grpc import ProcessorServiceAsyncStub

SERVICE = "progressor.v1.ProcessorService"


def called(namespace: str = "orders") -> pb.ProcessRequest:
    return pb.ProcessRequest(
        process=types.Process(namespace=namespace, process_id="p"),
        task=pb.ProcessorTask(task_id=1, type=types.TASK_TYPE_CALL),
    )


@contextlib.asynccontextmanager
async def stub_of(address: str) -> AsyncIterator["ProcessorServiceAsyncStub"]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield ProcessorServiceStub(channel)


def answering(name: str) -> Processor[Any]:
    processor = Processor(name)

    @processor.call
    async def answer(step: Step[Any]) -> str:
        return f"{name} for {step.namespace}"

    return processor


async def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    bind = f"unix:{tmp_path}/p.sock"
    async with answering("orders").running(bind) as address, stub_of(address) as stub:
        response = await stub.Process(called())

    assert address == bind
    assert response.response


async def test_several_processors_answer_each_for_its_namespace() -> None:
    served = (answering("orders"), answering("payments"))
    async with running(*served, bind="127.0.0.1:0") as address, stub_of(address) as stub:
        answers = [await stub.Process(called(name)) for name in ("payments", "orders", "other")]

    assert [it.response for it in answers[:2]] == [
        b'"payments for payments"',
        b'"orders for orders"',
    ]
    assert (answers[2].failure.code, answers[2].failure.reason) == (12, "NO_PROCESSOR")
    assert "'other'" in answers[2].failure.message


@pytest.mark.parametrize("names", [[], ["orders", "orders"]])
async def test_processors_need_different_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="each of another name"):
        async with running(*(Processor(name) for name in names), bind="127.0.0.1:0"):
            pass


async def test_a_port_is_never_shared() -> None:
    async with answering("orders").running("127.0.0.1:0") as address:
        with pytest.raises(RuntimeError):
            async with answering("payments").running(address):
                pass


async def test_health_and_reflection_are_there() -> None:
    async with (
        answering("orders").running("127.0.0.1:0") as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        checked = [
            await health.Check(health_pb2.HealthCheckRequest(service=name))
            for name in ("", SERVICE)
        ]
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # takes both
        reflected = reflection.ServerReflectionInfo(iter([asked]))
        names = [
            it.name async for found in reflected for it in found.list_services_response.service
        ]

    assert [it.status for it in checked] == [health_pb2.HealthCheckResponse.SERVING] * 2
    assert SERVICE in names


class SlowOrders:
    """A processor whose one handler tells when it is entered, and waits to be let go."""

    def __init__(self) -> None:
        self.processor: Processor[Any] = Processor("orders")
        self.entered = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.processor.call(self.handle)

    async def handle(self, _step: Step[Any]) -> str:
        self.entered.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"


async def test_a_drain_waits_for_the_step_in_hand_and_lets_health_watchers_go() -> None:
    slow = SlowOrders()
    leave = asyncio.Event()
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve_until_told() -> None:
        async with slow.processor.running("127.0.0.1:0") as address:
            bound.set_result(address)
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve_until_told())
        async with grpc.aio.insecure_channel(await bound) as channel:
            step = group.create_task(unary(channel))
            await slow.entered.wait()
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            first = await watch.read()
            leave.set()
            await last_word(watch)  # the drain has begun
            assert not serving.done()
            slow.released.set()
            response = await step
            await serving

    assert first.status == health_pb2.HealthCheckResponse.SERVING
    assert response.response == b'"done"'


async def unary(channel: grpc.aio.Channel) -> pb.ProcessResponse:
    stub: ProcessorServiceAsyncStub = ProcessorServiceStub(channel)
    return await stub.Process(called())


async def last_word(watch: Any) -> None:
    while await watch.read() is not grpc.aio.EOF:
        pass


async def test_a_drain_ends_with_its_timeout() -> None:
    slow = SlowOrders()
    limits = Limits(drain_timeout=dt.timedelta(milliseconds=50))
    async with asyncio.TaskGroup() as group:
        async with slow.processor.running("127.0.0.1:0", limits=limits) as address:
            channel = grpc.aio.insecure_channel(address)
            step = group.create_task(refused(channel))
            await slow.entered.wait()
        code = await step
        await channel.close()

    assert slow.cancelled.is_set()
    assert code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


async def refused(channel: grpc.aio.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await unary(channel)
    return raised.value.code()


async def test_serving_in_a_loop_ends_with_its_cancellation(tmp_path: Path) -> None:
    bind = f"unix:{tmp_path}/p.sock"
    serving = asyncio.ensure_future(serve_async(answering("orders"), bind=bind))
    async with stub_of(bind) as stub:
        response = await stub.Process(called(), wait_for_ready=True)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    assert response.response
