"""Steps in frames, on a real socket: each by itself, cancelled, bounded, and let go on leaving."""

import asyncio
import contextlib
import contextvars
import datetime as dt
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import Any

import grpc
import pytest

from progressor.internal.v1 import frames_pb2
from progressor.sdk import Limits, Processor, Step
from progressor.sdk.processor import streaming
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types

PROCESS = "/progressor.v1.ProcessorService/Process"
STREAM = "/progressor.v1.ProcessorService/ProcessStream"
UNKNOWN, INTERNAL, UNAVAILABLE, OUT_OF_RANGE = 2, 13, 14, 11


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


def request(
    name: str, args: str = "", *, task_type: types.TaskType.ValueType = types.TASK_TYPE_CALL
) -> bytes:
    return pb.ProcessRequest(
        process=types.Process(namespace="orders", process_id=name),
        task=pb.ProcessorTask(task_id=1, type=task_type, args=f'"{args}"'.encode()),
    ).SerializeToString()


def step(step_id: int, name: str, args: str = "") -> frames_pb2.RawStep:
    return frames_pb2.RawStep(step_id=step_id, request=request(name, args))


@contextlib.asynccontextmanager
async def engine_of(address: str) -> AsyncIterator[Engine]:
    async with channel_to(address) as channel:
        yield Engine(channel)


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


async def test_what_one_step_does_wrong_is_told_in_its_own_answer() -> None:
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
        3: (UNAVAILABLE, ""),
        4: (OUT_OF_RANGE, "MESSAGE_TOO_LARGE"),
        5: (0, ""),
    }
    assert answers[5].response == b'"e"'


class Buggy(Processor[Any]):
    """A processor of which one answer has a bug."""

    async def answer(self, request: pb.ProcessRequest, threads: Executor) -> pb.ProcessResponse:  # noqa: ARG002  # as overridden
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

    notified = request("b", task_type=types.TASK_TYPE_NOTIFY)
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


async def test_over_the_bound_steps_wait_in_line_where_they_can_be_given_up() -> None:
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
    async with served(steps_max=1) as (orders, engine, address), channel_to(address) as channel:
        await engine.send(step(1, "a", "hang"))
        await orders.until(orders.begun, "a")
        call: Any = channel.unary_unary(PROCESS)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(request("b"))
        orders.released.set()
        await engine.answers(1)

        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(request("b"))


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


async def test_an_engine_that_says_no_more_gets_what_it_is_owed() -> None:
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


class TestLeaving:
    async def test_is_said_and_what_is_in_hand_or_crosses_it_is_answered(self) -> None:
        orders = Orders()
        leave = asyncio.Event()
        bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve_until_told() -> None:
            async with orders.processor.running("127.0.0.1:0") as address:
                bound.set_result(address)
                await leave.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(serve_until_told())
            async with engine_of(await bound) as engine:
                await engine.send(step(1, "a", "hang"))
                await orders.until(orders.begun, "a")
                leave.set()
                frame = await engine.read()
                assert frame is not None
                await engine.send(step(2, "b"))
                crossed = await engine.answers(1)
                orders.released.set()
                last = await engine.answers(1)
                end = await engine.read()

        assert frame.draining
        assert (list(crossed), list(last), end) == ([2], [1], None)

    async def test_ends_with_its_timeout(self) -> None:
        orders = Orders()
        limits = Limits(drain_timeout=dt.timedelta(milliseconds=50))
        async with asyncio.TaskGroup() as group:
            async with orders.processor.running("127.0.0.1:0", limits=limits) as address:
                channel = grpc.aio.insecure_channel(address)
                engine = Engine(channel)
                await engine.send(step(1, "a", "hang"))
                await orders.until(orders.begun, "a")
                cut_off = group.create_task(how_it_ends(engine))
            code = await cut_off
            await channel.close()

        assert orders.cancelled == ["a"]
        assert code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


async def how_it_ends(engine: Engine) -> grpc.StatusCode | None:
    try:
        while await engine.read() is not None:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None
