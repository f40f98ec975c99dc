"""Processors on a real socket: routing, health, reflection, steps in frames, and the drain."""

import asyncio
import contextlib
import contextvars
import datetime as dt
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from progressor.internal.v1 import frames_pb2
from progressor.sdk import Limits, Processor, Reject, Step, running
from progressor.sdk.processor import server, streaming
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.v1.processor_service_pb2_grpc import ProcessorServiceStub

if TYPE_CHECKING:  # the class is in the stub file only
    from progressor.v1.processor_service_pb2_grpc import ProcessorServiceAsyncStub

SERVICE = "progressor.v1.ProcessorService"
STREAM = f"/{SERVICE}/ProcessStream"
UNKNOWN, ABORTED, INTERNAL, OUT_OF_RANGE = 2, 10, 13, 11


class Orders:
    """A processor whose handler does what the args say; "hang" until it is let go."""

    def __init__(self) -> None:
        self.processor: Processor[Any] = Processor("orders")
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.news = asyncio.Condition()
        self.released = asyncio.Event()
        self.processor.call(self.handle)

    async def handle(self, step: Step[Any]) -> str:
        await self.note(self.begun, step.process_id)
        match step.args:
            case "hang":
                try:
                    await self.released.wait()
                except asyncio.CancelledError:
                    await self.note(self.cancelled, step.process_id)
                    raise
            case "raise":
                message = "of the user's"
                raise ValueError(message)
            case "cancel":
                raise asyncio.CancelledError
            case "huge":
                return "x" * (64 * 1024 * 1024)
            case _:
                pass
        return step.process_id

    async def note(self, names: list[str], name: str) -> None:
        async with self.news:
            names.append(name)
            self.news.notify_all()

    async def until(self, names: list[str], *wanted: str) -> None:
        async with asyncio.timeout(10), self.news:
            await self.news.wait_for(lambda: sorted(names) == list(wanted))


class Engine:
    """The other end of a stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = channel.stream_stream(STREAM)()

    async def send(self, *steps: frames_pb2.RawStep, cancelled: tuple[int, ...] = ()) -> None:
        frame = frames_pb2.StepsFrame(steps=steps, cancelled=cancelled)
        await self.call.write(frame.SerializeToString())

    async def read(self) -> pb.ProcessStreamResponse | None:
        """Return the next frame; None: the stream ended as it should."""
        packed = await self.call.read()
        if packed is grpc.aio.EOF:
            return None
        return pb.ProcessStreamResponse.FromString(packed)

    async def answers(self, count: int) -> dict[int, pb.ProcessResponse]:
        """Return so many answers by their step ids."""
        found: dict[int, pb.ProcessResponse] = {}
        async with asyncio.timeout(10):
            while len(found) < count:
                frame = await self.read()
                assert frame is not None
                found.update({it.step_id: it.response for it in frame.answers})
        return found


def called(
    name: str,
    args: str = "",
    *,
    task_type: types.TaskType.ValueType = types.TASK_TYPE_CALL,
    namespace: str = "orders",
) -> pb.ProcessRequest:
    return pb.ProcessRequest(
        process=types.Process(namespace=namespace, process_id=name),
        task=pb.ProcessorTask(task_id=1, type=task_type, args=f'"{args}"'.encode()),
    )


def step(step_id: int, name: str, args: str = "") -> frames_pb2.RawStep:
    return frames_pb2.RawStep(step_id=step_id, request=called(name, args).SerializeToString())


@contextlib.asynccontextmanager
async def engine_of(address: str) -> AsyncIterator[Engine]:
    async with channel_to(address) as channel:
        yield Engine(channel)


@contextlib.asynccontextmanager
async def stub_to(address: str) -> AsyncIterator["ProcessorServiceAsyncStub"]:
    async with channel_to(address) as channel:
        yield ProcessorServiceStub(channel)


def channel_to(address: str) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", -1)]
    return grpc.aio.insecure_channel(address, options=options)


@contextlib.asynccontextmanager
async def served(
    *, steps_max: int = 100, drain_seconds: float = 10
) -> AsyncIterator[tuple[Orders, Engine, str]]:
    orders = Orders()
    limits = Limits(steps_max=steps_max, drain_timeout=dt.timedelta(seconds=drain_seconds))
    async with (
        orders.processor.running("127.0.0.1:0", limits=limits) as address,
        engine_of(address) as engine,
    ):
        yield orders, engine, address


async def test_steps_of_a_frame_are_answered_each_as_soon_as_it_is_done() -> None:
    async with served() as (orders, engine, _):
        await engine.send(step(1, "a", "hang"), step(2, "b"), step(3, "c"))
        early = await engine.answers(2)
        orders.released.set()
        late = await engine.answers(1)

    assert {number: it.response for number, it in early.items()} == {2: b'"b"', 3: b'"c"'}
    assert late[1].response == b'"a"'


async def test_a_fault_of_one_step_is_reported_in_its_own_answer() -> None:
    async with served() as (_, engine, _address):
        garbage = frames_pb2.RawStep(step_id=1, request=b"\xff\xfe")
        await engine.send(
            garbage, step(2, "b", "raise"), step(3, "c", "cancel"), step(4, "d", "huge"),
            step(5, "e"),
        )  # fmt: skip
        answers = await engine.answers(5)

    told = {number: (it.failure.code, it.failure.reason) for number, it in answers.items()}
    assert told == {
        1: (INTERNAL, "INVALID_REQUEST"),
        2: (UNKNOWN, "ValueError"),
        3: (ABORTED, ""),
        4: (OUT_OF_RANGE, "MESSAGE_TOO_LARGE"),
        5: (0, ""),
    }
    assert answers[5].response == b'"e"'


class Buggy(Processor[Any]):
    """A processor of which one answer has a bug."""

    async def answer(
        self, request: pb.ProcessRequest, threads: Executor, link: object = None
    ) -> pb.ProcessResponse:
        del threads, link
        if request.process.process_id == "bug":
            message = "a bug"
            raise RuntimeError(message)
        return pb.ProcessResponse(response=b"fine")


async def test_a_bug_in_one_step_never_ends_the_others() -> None:
    buggy = Buggy("orders")
    buggy.call(lambda _: None)
    async with buggy.running("127.0.0.1:0") as address, engine_of(address) as engine:
        await engine.send(step(1, "bug"), step(2, "b"))
        answers = await engine.answers(2)

    assert (answers[1].failure.code, answers[2].response) == (UNKNOWN, b"fine")
    assert "a bug" in answers[1].failure.message


async def test_a_plain_handler_never_blocks_the_others() -> None:
    processor: Processor[Any] = Processor("orders")
    released = threading.Event()

    @processor.call
    def block(_step: Step[Any]) -> str:
        assert released.wait(timeout=30)
        return "blocked"

    @processor.notify
    async def quick(_step: Step[Any]) -> str:
        return "quick"

    notified = called("b", task_type=types.TASK_TYPE_NOTIFY).SerializeToString()
    async with processor.running("127.0.0.1:0") as address, engine_of(address) as engine:
        await engine.send(step(1, "a"), frames_pb2.RawStep(step_id=2, request=notified))
        first = await engine.answers(1)
        released.set()
        second = await engine.answers(1)

    assert (first[2].response, second[1].response) == (b'"quick"', b'"blocked"')


async def test_a_step_that_was_given_up_is_cancelled_and_not_answered() -> None:
    async with served() as (orders, engine, _):
        await engine.send(step(1, "a", "hang"))
        await orders.until(orders.begun, "a")
        await engine.send(step(2, "b"), cancelled=(1, 77))
        answers = await engine.answers(1)
        await orders.until(orders.cancelled, "a")
        await engine.call.done_writing()

        assert list(answers) == [2]
        assert await engine.read() is None


async def test_a_step_that_is_given_up_in_the_frame_it_came_with_never_begins() -> None:
    async with served(steps_max=1) as (orders, engine, _):
        await engine.send(step(1, "a", "hang"), cancelled=(1,))
        await engine.send(step(2, "b"))

        assert list(await engine.answers(1)) == [2]
        assert orders.begun == ["b"]


async def test_steps_over_the_limit_are_queued_and_can_be_cancelled() -> None:
    async with served(steps_max=2) as (orders, engine, _):
        await engine.send(*(step(number, f"p{number}", "hang") for number in range(1, 5)))
        await orders.until(orders.begun, "p1", "p2")
        await engine.send(cancelled=(3, 1))
        await orders.until(orders.cancelled, "p1")
        orders.released.set()
        answers = await engine.answers(2)

    assert sorted(answers) == [2, 4]
    assert orders.begun == ["p1", "p2", "p4"]


async def test_no_step_sees_what_the_one_that_made_room_for_it_has_set() -> None:
    processor: Processor[Any] = Processor("orders")
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")

    @processor.call
    async def note(step: Step[Any]) -> str:
        before = seen.get()
        seen.set(step.process_id)
        return before

    one_at_a_time = processor.running("127.0.0.1:0", limits=Limits(steps_max=1))
    async with one_at_a_time as address, engine_of(address) as engine:
        await engine.send(*(step(number, f"p{number}") for number in range(1, 4)))
        answers = await engine.answers(3)

    assert [answers[number].response for number in (1, 2, 3)] == [b'"nothing"'] * 3


def turn_of(*words: str, first: int = 1) -> list[frames_pb2.RawStep]:
    """Return the steps of a turn of the process "p"; all but the first have a task alone."""
    steps = []
    for step_id, word in enumerate(words, first):
        request = called("p", word)
        request.task.task_id = step_id
        if step_id > first:
            request.ClearField("process")
        steps.append(
            frames_pb2.RawStep(step_id=step_id, request=request.SerializeToString(), turn=first)
        )
    return steps


def ended(answers: dict[int, pb.ProcessResponse]) -> list[int]:
    """Return the steps that were not run since their turn had ended."""
    return sorted(number for number, it in answers.items() if it.failure.reason == "TURN_ENDED")


async def test_the_steps_of_a_turn_run_one_after_the_other_on_the_process_as_left() -> None:
    processor: Processor[Any] = Processor("orders")
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")

    @processor.call
    async def call(step: Step[Any]) -> list[Any]:
        before, events = seen.get(), [event.payload for event in step.history]
        seen.set("something")
        if step.args == "refused":
            raise Reject("no")
        step.state = (step.state or 0) + 1
        step.emit(step.args)
        return [step.process_id, step.state, events, before]

    one_at_a_time = processor.running("127.0.0.1:0", limits=Limits(steps_max=1))
    async with one_at_a_time as address, engine_of(address) as engine:
        await engine.send(*turn_of("a", "refused", "b"))
        answers = await engine.answers(3)

    responses = [json.loads(answers[number].response) for number in (1, 3)]
    assert responses == [["p", 1, [], "nothing"], ["p", 2, ["a"], "nothing"]]
    assert answers[2].HasField("reject")


async def test_nothing_of_a_turn_runs_behind_a_step_that_fails() -> None:
    async with served() as (orders, engine, _):
        await engine.send(*turn_of("a", "raise", "b", "c"))
        answers = await engine.answers(4)

    assert len(orders.begun) == 2
    assert ended(answers) == [3, 4]


async def test_nothing_of_a_turn_runs_behind_a_step_that_was_given_up() -> None:
    async with served() as (orders, engine, _):
        await engine.send(*turn_of("hang", "b", "c"))
        await orders.until(orders.begun, "p")
        await engine.send(step(9, "other"), cancelled=(1, 2, 3))
        await orders.until(orders.cancelled, "p")
        await engine.send(*turn_of("d", "hang", "e", first=11))
        await orders.until(orders.begun, "other", "p", "p", "p")
        await engine.send(cancelled=(13,))
        answers = await engine.answers(5)
        orders.released.set()
        last = await engine.answers(1)

    assert ended(answers) == [2, 3, 13]
    assert last[12].response == b'"p"'


async def test_a_turn_begins_nothing_late_and_nothing_without_its_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "TURN_SECONDS", 0.0)
    async with served() as (_, engine, _address):
        await engine.send(*turn_of("a", "b"), *turn_of("c", "d", first=11)[1:])
        answers = await engine.answers(3)

    assert ended(answers) == [2, 12]


@pytest.mark.parametrize("bound", ["QUEUE_STEPS_MAX", "QUEUE_BYTES_MAX"])
async def test_what_is_more_than_the_queue_holds_is_read_later(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, bound, 2)
    async with served(steps_max=2) as (orders, engine, _):
        for number in range(1, 9):
            await engine.send(step(number, f"p{number}", "hang"))
        await orders.until(orders.begun, "p1", "p2")
        orders.released.set()
        answers = await engine.answers(8)

    assert sorted(answers) == list(range(1, 9))


async def test_over_the_bound_a_call_is_refused() -> None:
    async with served(steps_max=1) as (orders, engine, address), stub_to(address) as stub:
        await engine.send(step(1, "a", "hang"))
        await orders.until(orders.begun, "a")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Process(called("b"))
        orders.released.set()
        await engine.answers(1)

        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Process(called("b"))).response


async def test_an_engine_that_goes_away_takes_the_handlers_with_it_and_frees_their_places() -> None:
    async with served(steps_max=2) as (orders, engine, address):
        await engine.send(*(step(number, f"p{number}", "hang") for number in range(1, 5)))
        await orders.until(orders.begun, "p1", "p2")
        engine.call.cancel()
        await orders.until(orders.cancelled, "p1", "p2")
        async with engine_of(address) as other:
            await other.send(step(1, "a"), step(2, "b"), step(3, "c"))

            assert sorted(await other.answers(3)) == [1, 2, 3]
    assert orders.begun[:2] == ["p1", "p2"]
    assert "p3" not in orders.begun


async def test_pending_answers_are_sent_after_the_engine_has_closed_its_side() -> None:
    async with served() as (orders, engine, _):
        await engine.send(step(1, "a", "hang"))
        await engine.call.done_writing()
        await orders.until(orders.begun, "a")
        orders.released.set()

        assert list(await engine.answers(1)) == [1]
        assert await engine.read() is None


async def test_a_frame_that_cannot_be_read_ends_the_stream_and_its_steps() -> None:
    async with served() as (orders, engine, _):
        await engine.send(step(1, "a", "hang"))
        await orders.until(orders.begun, "a")
        await engine.call.write(b"\xff\xfe")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await engine.read()
        await orders.until(orders.cancelled, "a")

    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def answering(name: str) -> Processor[Any]:
    processor = Processor(name)

    @processor.call
    async def answer(step: Step[Any]) -> str:
        return f"{name} for {step.namespace}"

    return processor


class Bare:
    """No more than a server needs of a processor, with names of its own for the arguments."""

    name = "bare"

    async def answer(
        self, asked: pb.ProcessRequest, pool: Executor, link: object = None
    ) -> pb.ProcessResponse:
        assert pool is not None
        del link
        return pb.ProcessResponse(response=asked.process.namespace.encode())


async def test_a_processor_of_another_kind_is_served(caplog: pytest.LogCaptureFixture) -> None:
    bare: Any = Bare()
    async with running(bare, bind="127.0.0.1:0") as address, stub_to(address) as stub:
        response = await stub.Process(called("p", namespace="bare"))
    with caplog.at_level("INFO"):
        server._announce((bare,), address)  # said only by a whole program

    assert response.response == b"bare"
    assert caplog.messages == [f"serving 'bare' on {address}"]


async def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    bind = f"unix:{tmp_path}/p.sock"
    async with answering("orders").running(bind) as address, stub_to(address) as stub:
        response = await stub.Process(called("p"))

    assert address == bind
    assert response.response


async def test_several_processors_answer_each_for_its_namespace() -> None:
    served = (answering("orders"), answering("payments"))
    async with running(*served, bind="127.0.0.1:0") as address, stub_to(address) as stub:
        answers = [
            await stub.Process(called("p", namespace=name))
            for name in ("payments", "orders", "other")
        ]

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


async def test_a_drain_is_said_and_what_is_in_hand_or_crosses_it_is_answered() -> None:
    orders, leave = Orders(), asyncio.Event()
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve_until_told() -> None:
        async with orders.processor.running("127.0.0.1:0") as address:
            bound.set_result(address)
            await leave.wait()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        serving = group.create_task(serve_until_told())
        async with channel_to(await bound) as channel, engine_of(bound.result()) as engine:
            stub: ProcessorServiceAsyncStub = ProcessorServiceStub(channel)
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            first = await watch.read()
            await engine.send(step(1, "a", "hang"))
            alone = asyncio.ensure_future(stub.Process(called("c", "hang")))
            await orders.until(orders.begun, "a", "c")
            leave.set()
            frame = await engine.read()
            assert frame is not None
            await engine.send(step(2, "b"))
            crossed = await engine.answers(1)
            while await watch.read() is not grpc.aio.EOF:  # its watchers are let go
                pass
            assert not serving.done()
            orders.released.set()
            last = await engine.answers(1)
            end = await engine.read()
            await serving

            assert first.status == health_pb2.HealthCheckResponse.SERVING
            assert frame.draining
            assert (list(crossed), list(last), end) == ([2], [1], None)
            assert (await alone).response == b'"c"'


async def test_a_drain_ends_with_its_timeout() -> None:
    orders = Orders()
    limits = Limits(drain_timeout=dt.timedelta(milliseconds=50))
    async with orders.processor.running("127.0.0.1:0", limits=limits) as address:
        channel = channel_to(address)
        engine = Engine(channel)
        stub: ProcessorServiceAsyncStub = ProcessorServiceStub(channel)
        await engine.send(step(1, "a", "hang"))
        alone = asyncio.ensure_future(stub.Process(called("c", "hang")))
        await orders.until(orders.begun, "a", "c")
    codes = []
    for ending in (engine.answers(1), alone):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ending
        codes.append(raised.value.code())
    await channel.close()

    assert sorted(orders.cancelled) == ["a", "c"]
    assert set(codes) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
