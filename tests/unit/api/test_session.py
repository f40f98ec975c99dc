"""Sessions of the engine on a stream in memory: what is answered, refused, ended and bounded."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from progressor import errors
from progressor.api.calls.interceptors import Interceptor
from progressor.api.calls.malformed import deserializer
from progressor.api.calls.servicer import Servicer
from progressor.api.calls.traces import CallContext, trace_context_of
from progressor.api.processes.servicer import ProcessServicer
from progressor.api.server import sessions
from progressor.api.server.sessions import TIMEOUT_SECONDS_MAX, Call, Sessions
from progressor.clock import SystemClock
from progressor.internal.v1 import frames_pb2
from progressor.telemetry.metrics.registry import Metrics
from progressor.v1 import process_service_pb2 as pb
from tests.support.engine.sessions import call_of
from tests.support.telemetry.measured import counted
from tests.unit.api.test_calls import PARENT, Context, EndError

PATIENCE_SECONDS = 10


class Stream(Context):
    """A stream as gRPC would show it: frames go in by `send`, and come out to `answers`."""

    def __init__(self) -> None:
        super().__init__()
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: dict[int, list[pb.SessionAnswer]] = {}
        self.frames: list[pb.SessionResponse] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.news = asyncio.Event()
        self.read_count = 0
        self.breaks: Exception | None = None

    def send(self, *calls: pb.SessionCall, cancelled: Sequence[int] = ()) -> None:
        frame = pb.SessionRequest(calls=calls, cancelled=cancelled)
        self.send_bytes(frame.SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        self.incoming.put_nowait(deserializer(frames_pb2.CallsFrame)(data))

    def close(self) -> None:
        self.incoming.put_nowait(grpc.aio.EOF)

    async def read(self) -> Any:
        frame = await self.incoming.get()
        self.read_count += 1
        self.news.set()
        return frame

    async def write(self, message: Message) -> None:
        await self.gate.wait()
        if self.breaks is not None:
            raise self.breaks
        frame = pb.SessionResponse.FromString(message.SerializeToString())
        self.frames.append(frame)
        for answer in frame.answers:
            self.answers.setdefault(answer.call_id, []).append(answer)
        self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def answered(self, count: int = 1) -> dict[int, pb.SessionAnswer]:
        """Return the last answer of each call, once there are `count` answers."""
        await self.until(lambda: sum(map(len, self.answers.values())) >= count)
        return {call_id: found[-1] for call_id, found in self.answers.items()}


class Methods(Servicer):
    """Methods that answer by their args: ``hang`` never, ``break`` with a bug, others at once."""

    service = ProcessServicer.service

    def __init__(self, news: asyncio.Event) -> None:
        self.release = asyncio.Event()
        self.news = news
        self.begun = 0
        self.let_go = 0
        self.contexts: list[CallContext] = []
        self.on_sent: Callable[[int], None] | None = None

    def method(self, _rpc: str) -> Any:
        return self.serve

    async def serve(self, message: Any, context: CallContext) -> Message:
        self.begun += 1
        self.news.set()
        self.contexts.append(context)
        args = getattr(message, "args", b"")
        if self.on_sent is not None and args != b"hang":
            assert isinstance(context, Call)
            context.when_sent(functools.partial(self.on_sent, context.call_id))
        if args == b"break":
            raise KeyError(args)
        if args == b"finished":
            raise errors.ProcessFinishedError(message.process_id)
        if args in {b"hang", b"stubborn"}:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.let_go += 1
                if args == b"hang":
                    raise
                # One that has to finish what it has begun, and then has an answer after all.
        answer = message.DESCRIPTOR.name.replace("Request", "Response")
        return getattr(pb, answer)()  # type: ignore[no-any-return]  # untyped by grpc


class Running:
    """A session that runs, and what stands around it."""

    def __init__(self, calls_max: int) -> None:
        self.stream = Stream()
        self.methods = Methods(self.stream.news)
        self.metrics = Metrics()
        self.interceptor = Interceptor(clock=SystemClock(), metrics=self.metrics)
        self.sessions = Sessions(
            self.methods,
            interceptor=self.interceptor,
            clock=SystemClock(),
            calls_max=calls_max,
        )
        self.serve: Any = self.interceptor.wrapped_stream(
            ProcessServicer.service.methods_by_name["Session"], self.sessions
        )
        self.task: asyncio.Task[None] | None = None

    async def ended(self) -> None:
        """Wait until the session has ended."""
        assert self.task is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait([self.task])


@contextlib.asynccontextmanager
async def running(calls_max: int = 100) -> AsyncIterator[Running]:
    run = Running(calls_max)
    async with asyncio.TaskGroup() as group:
        run.task = group.create_task(served(run))
        yield run
        run.task.cancel()


async def exchange(*calls: pb.SessionCall) -> tuple[Running, dict[int, pb.SessionAnswer]]:
    """Return a session that has ended, and its answer to each call."""
    async with running() as run:
        run.stream.send(*calls)
        answers = await run.stream.answered(len(calls))
    return run, answers


async def served(run: Running) -> None:
    with contextlib.suppress(EndError):
        await run.serve(None, run.stream)


def call(
    call_id: int, args: bytes = b"", *, timeout: float | None = None, **trace: str
) -> pb.SessionCall:
    request = pb.CallRequest(namespace="orders", process_id=str(call_id), args=args)
    return call_of(call_id, request, timeout=timeout, trace_context=trace)


def reason(answer: pb.SessionAnswer) -> str:
    info = error_details_pb2.ErrorInfo()
    answer.error.details[0].Unpack(info)
    return str(info.reason)


def violation(answer: pb.SessionAnswer) -> tuple[str, str]:
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in answer.error.details)
    (found,) = bad.field_violations
    return found.field, found.description


async def test_a_session_is_counted_while_it_is_open() -> None:
    async with running() as run:
        run.stream.send(call(1))
        await run.stream.answered()
        count = run.sessions.open_count
        run.stream.close()
        await run.ended()

    assert (count, run.sessions.open_count) == (1, 0)


async def test_an_error_and_a_bug_end_their_own_calls(caplog: pytest.LogCaptureFixture) -> None:
    run, answers = await exchange(call(1, b"finished"), call(2, b"break"), call(3))

    assert [answers[n].error.code for n in (1, 2, 3)] == [9, 13, 0]
    assert [reason(answers[n]) for n in (1, 2)] == ["PROCESS_FINISHED", "INTERNAL"]
    assert vars(caplog.records[0])["error_id"] in answers[2].error.message
    assert counted(run.metrics.requests) == {
        ("orders", "Call", "refused", "PROCESS_FINISHED"): 1,
        ("orders", "Call", "internal", "INTERNAL"): 1,
        ("orders", "Call", "ok", ""): 1,
    }


async def test_a_poisoned_item_ends_alone() -> None:
    frame = frames_pb2.CallsFrame()
    frame.calls.add(call_id=1, call=call(1).call.SerializeToString())
    frame.calls.add(call_id=2, call=b"\x12\x02\xff\xfe")
    frame.calls.add(call_id=3, get=b"\x0a\x7fshort")
    async with running() as run:
        run.stream.send_bytes(frame.SerializeToString())
        answers = await run.stream.answered(3)

    assert answers[1].HasField("call")
    assert violation(answers[2])[0] == "process_id"
    assert violation(answers[3])[0] == "request"


async def test_an_invalid_frame_ends_the_session_and_its_calls() -> None:
    async with running() as run:
        run.stream.send(call(1, b"hang"))
        await run.stream.until(lambda: run.methods.begun == 1 or run.stream.read_count == 1)
        run.stream.send_bytes(b"\x0a\x7fshort")
        await run.ended()

    assert run.stream.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (run.methods.begun, run.methods.let_go) in {(1, 1), (0, 0)}
    assert run.stream.answers == {}


async def test_a_call_without_a_request_is_refused() -> None:
    _, answers = await exchange(pb.SessionCall(call_id=7))

    assert violation(answers[7])[0] == "request"


@pytest.mark.parametrize("timeout", [0.0, -1.0, TIMEOUT_SECONDS_MAX + 1.0])
async def test_a_timeout_that_makes_no_sense_is_refused(timeout: float) -> None:
    _, answers = await exchange(call(1, timeout=timeout))

    assert violation(answers[1])[0] == "timeout"


async def test_a_method_that_does_not_keep_the_deadline_is_cut_short_at_it() -> None:
    async with running() as run:
        run.stream.send(call(1, b"hang", timeout=0.05), call(2, b"hang"))
        answers = await run.stream.answered()

    assert answers.keys() == {1}
    assert reason(answers[1]) == "DEADLINE_EXCEEDED"


async def test_a_method_sees_the_deadline_and_the_trace_of_its_call() -> None:
    run, _ = await exchange(call(1, timeout=30.0, traceparent=PARENT), call(2, traceparent="x"))

    first, second = run.methods.contexts
    remaining = first.time_remaining()
    assert remaining is not None
    assert 20 < remaining <= 30
    assert trace_context_of(first) == {"traceparent": PARENT}
    assert (second.time_remaining(), trace_context_of(second)) == (None, {})


async def test_a_cancelled_call_is_let_go_and_never_answered() -> None:
    async with running() as run:
        run.stream.send(call(1, b"hang"), call(2, b"stubborn"), call(3))
        await run.stream.answered()
        run.stream.send(call(1), cancelled=[1, 2, 99])
        run.stream.send(call(4))
        answers = await run.stream.answered(3)

    # The second call of id 1 came before the first was cancelled.
    assert violation(answers[1])[0] == "call_id"
    assert answers.keys() == {1, 3, 4}
    assert run.methods.let_go == 2


async def test_a_call_cancelled_in_its_own_frame_never_begins() -> None:
    async with running() as run:
        run.stream.send(call(1), cancelled=[1])
        run.stream.send(call(1))
        run.stream.close()
        await run.ended()

    assert run.methods.begun == 1
    assert len(run.stream.answers[1]) == 1


async def test_calls_beyond_the_bound_are_overloaded() -> None:
    async with running(calls_max=2) as run:
        run.stream.send(call(1, b"hang"), call(2, b"hang"), call(3))
        answers = await run.stream.answered()
        run.methods.release.set()
        await run.stream.answered(3)
        run.stream.send(call(4))
        again = await run.stream.answered(4)

    assert (answers[3].error.code, reason(answers[3])) == (8, "OVERLOADED")
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in answers[3].error.details)
    assert again[4].HasField("call")


async def test_one_huge_frame_is_held_to_the_bound_too() -> None:
    async with running(calls_max=4) as run:
        run.stream.gate.clear()
        run.stream.send(*(call(number) for number in range(500)))
        await run.stream.until(lambda: run.stream.read_count == 1)
        for _ in range(100):
            await asyncio.sleep(0)
        begun, refused = run.methods.begun, sum(counted(run.metrics.requests).values())
        run.stream.gate.set()
        answers = await run.stream.answered(500)

    assert begun + refused < 20
    assert len(answers) == 500


async def test_a_client_that_disconnects_ends_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as run:
        run.stream.breaks = grpc.aio.InternalError("gone")
        run.stream.send(call(1, b"hang"), call(2))
        await run.ended()

    assert run.methods.let_go == 1
    assert run.stream.code is None
    assert caplog.records == []


async def test_a_bug_of_the_session_itself_is_reported_as_internal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as run:
        run.stream.breaks = KeyError("secret")
        run.stream.send(call(2))
        await run.ended()

    assert run.stream.code is grpc.StatusCode.INTERNAL
    assert "secret" not in run.stream.details
    assert len(caplog.records) == 1


async def test_a_draining_session_refuses_work_and_serves_reads() -> None:
    async with running() as run:
        run.stream.send(call(1, b"hang"))
        await run.stream.until(lambda: run.methods.begun == 1 or run.stream.read_count == 1)
        await asyncio.sleep(0)
        run.interceptor.refuse_work()
        run.sessions.notify_draining()
        await run.stream.until(lambda: bool(run.stream.frames))
        run.stream.send(call(2), call_of(3, pb.GetRequest()))
        answers = await run.stream.answered(2)
        run.methods.release.set()
        last = await run.stream.answered(3)
        run.stream.close()
        await run.sessions.end(PATIENCE_SECONDS)
        await run.ended()

    assert run.stream.frames[0].draining
    assert reason(answers[2]) == "SHUTTING_DOWN"
    assert answers[3].HasField("get")
    assert last[1].HasField("call")
    assert run.stream.code is None


async def test_a_drain_that_runs_out_of_grace_ends_the_calls_with_an_answer() -> None:
    async with running() as run:
        run.stream.send(call(1, b"hang"))
        await run.stream.until(lambda: run.stream.read_count == 1)
        await asyncio.sleep(0)
        run.sessions.notify_draining()
        run.interceptor.refuse_all()
        run.interceptor.cut_off()
        await run.sessions.end(0.01)
        await run.ended()

    assert reason(run.stream.answers[1][0]) == "REPLICA_STOPPED"
    assert run.stream.code is None


async def test_a_session_opened_while_draining_is_told_so_at_once() -> None:
    async with running() as run:
        late, too_late = Stream(), Stream()
        run.sessions.notify_draining()
        late.close()
        await run.serve(None, late)
        run.stream.close()
        await run.sessions.end(PATIENCE_SECONDS)
        with pytest.raises(EndError):
            await run.serve(None, too_late)

    assert late.frames[0].draining
    assert too_late.code is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_reads_no_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "STALLED_BYTES", 1)
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.05)
    async with running() as run:
        run.stream.gate.clear()
        run.stream.send(call(1, b"finished"), call(2, b"finished"), call(3, b"hang"))
        await run.ended()

    assert run.stream.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "has read no answers" in run.stream.details
    assert (run.methods.begun, run.methods.let_go) == (3, 1)
    assert run.sessions.unsent_bytes == 0


async def test_a_client_that_reads_its_answers_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "STALLED_BYTES", 1)
    monkeypatch.setattr(sessions, "STALL_SECONDS", stall_seconds := 0.5)
    clock = asyncio.get_running_loop().time
    async with running() as run:
        until, number = clock() + 2 * stall_seconds, 0
        while clock() < until:
            number += 1
            run.stream.send(call(number, b"finished"))
            await run.stream.answered(number)
        run.stream.close()
        await run.ended()

    assert run.stream.code is None


async def test_the_session_with_the_most_unread_bytes_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "UNSENT_BYTES_MAX", 2_000)
    async with running() as run:
        other = Stream()
        second = asyncio.create_task(run.serve(None, other))
        run.stream.gate.clear()
        other.send(call(1))
        await other.answered()
        run.stream.send(*(call(number, b"finished") for number in range(50)))
        await run.ended()
        other.send(call(2))
        answers = await other.answered(2)
        other.close()
        await second

    assert run.stream.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answers.keys() == {1, 2}
    assert other.code is None


async def test_nothing_more_is_read_while_too_many_bytes_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "READ_AHEAD_BYTES", 1)
    async with running() as run:
        run.stream.gate.clear()
        run.stream.send(call(1, b"finished"))
        await run.stream.until(lambda: run.methods.begun == 1 and run.sessions.unsent_bytes > 0)
        run.stream.send(call(2))
        run.stream.send(call(3))
        await run.stream.until(lambda: run.stream.read_count == 2)
        begun = run.methods.begun
        run.stream.gate.set()
        answers = await run.stream.answered(3)

    assert begun == 1
    assert answers.keys() == {1, 2, 3}


async def test_a_call_is_notified_once_its_answer_was_read_or_never_will_be() -> None:
    sent: list[int] = []
    async with running() as run:
        run.stream.gate.clear()
        run.methods.on_sent = sent.append
        run.stream.send(call(1), call(2), call(3, b"hang"))
        await run.stream.until(lambda: run.methods.begun == 3)
        before = list(sent)
        run.stream.gate.set()
        await run.stream.answered(2)
        await run.stream.until(lambda: len(sent) == 2)
        run.stream.send(cancelled=[3])
        run.stream.gate.clear()
        run.stream.send(call(4))
        await run.stream.until(lambda: run.methods.begun == 4)

    assert before == []
    assert sorted(sent) == [1, 2, 4]
