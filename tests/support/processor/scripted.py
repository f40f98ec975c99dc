"""A scripted processor on a real gRPC socket: answers, refuses, hangs, drops, garbles.

It takes steps by streams and by calls alike, or by calls alone. Unless told otherwise it answers
each with one event and the args as the response. Behind
its socket a relay passes bytes to the gRPC server, so that `Drop` cuts connections as a dying host
would, without a word of HTTP/2.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Self, assert_never

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

from progressor.internal.v1 import frames_pb2
from progressor.v1 import processor_service_pb2, types_pb2
from tests.support.postgres.relay import Relay

_STATUS_DETAILS_KEY = "grpc-status-details-bin"
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_DEFAULT_BYTES_MAX = 4 * 1024 * 1024
# How long a request that was given up on may still be in here when the next one comes: the news
# of a cancellation travels beside the next request, not before it.
_OVERLAP_GRACE_SECONDS = 0.1

GARBAGE = b"\xff\xfe this is not a ProcessResponse"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Answer with this; None: one event, and the args as the response."""

    response: processor_service_pb2.ProcessResponse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Refuse:
    """End the call with a gRPC status, with rich details (ErrorInfo, RetryInfo) if any."""

    code: grpc.StatusCode
    text: str = ""
    details: tuple[Message, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """Answer only once `released` is set, if ever."""

    released: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    response: processor_service_pb2.ProcessResponse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """Cut every connection in the middle of the call."""


@dataclasses.dataclass(frozen=True, slots=True)
class Garble:
    """Answer with bytes that are not a ProcessResponse."""

    answer: bytes = GARBAGE


@dataclasses.dataclass(frozen=True, slots=True)
class GarbleFrame:
    """Write a frame of the stream that is none; by a call: as `Answer`."""


@dataclasses.dataclass(frozen=True, slots=True)
class EndStream:
    """End the stream with a status, whatever else is on it; by a call: as `Answer`."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    text: str = ""


Step = Answer | Refuse | Hang | Drop | Garble | GarbleFrame | EndStream

Context = aio.ServicerContext[bytes, bytes]
CarryOut = Callable[[processor_service_pb2.ProcessRequest, Context], Awaitable[tuple[Step, bytes]]]


def fail(code: int, *, reason: str = "", message: str = "") -> Answer:
    """Return the step that answers with a Failure of this google.rpc.Code."""
    failure = processor_service_pb2.Failure(code=code, reason=reason, message=message)
    return Answer(processor_service_pb2.ProcessResponse(failure=failure))


def reject(code: int, *, reason: str = "", message: str = "") -> Answer:
    """Return the step that answers with a Reject of this google.rpc.Code."""
    rejected = processor_service_pb2.Reject(code=code, reason=reason, message=message)
    return Answer(processor_service_pb2.ProcessResponse(reject=rejected))


class ScriptedProcessor:
    """A processor that does what it was told, and remembers what it was asked.

    Leaving it asserts that it was never asked twice at once for one process; a test in which
    leases are lost on purpose passes ``one_at_a_time=False`` and reads `overlaps` itself.
    """

    def __init__(
        self, *, path: str | None = None, one_at_a_time: bool = True, streaming: bool = True
    ) -> None:
        """Listen on a port of its own, or on the unix socket at `path`.

        Without `streaming`, ProcessStream is UNIMPLEMENTED; without `request_bytes_max`, so is
        Describe, and gRPC's default limit applies from the next restart on. Both may be changed at
        any time.
        """
        self.request_bytes_max: int | None = _MESSAGE_BYTES_MAX
        self.described_count = 0
        self.streaming = streaming
        self.streams = ScriptedStreams(self.carry_out)
        self.called: list[str] = []
        """The processes of those requests that came by a call of their own."""
        self.requests: list[processor_service_pb2.ProcessRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.overlaps: list[str] = []
        self._one_at_a_time = one_at_a_time
        self._scripts: dict[str | int, list[Step]] = {}
        self._arrived = asyncio.Condition()
        self._leaving: dict[str, asyncio.Event] = {}
        self.relay = Relay(path)
        self._server: aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.restart()
        return self

    async def __aexit__(self, error_type: object, error: object, traceback: object) -> None:
        await self.stop()
        if error is None and self._one_at_a_time:
            assert not self.overlaps, f"asked twice at once for {self.overlaps}"

    @property
    def target(self) -> str:
        """Where it listens, as a namespace names it; the same after a restart."""
        return self.relay.target

    async def restart(self) -> None:
        assert self._server is None, "it has not been stopped"
        limit = self.request_bytes_max or _DEFAULT_BYTES_MAX
        options = (
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", -1),
        )
        self._server = aio.server(options=options)
        self._server.add_generic_rpc_handlers((_AnyMethod(self),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        await self.relay.start(port)

    async def stop(self) -> None:
        """Refuse connections from now on, and cut those there are; safe to repeat."""
        await self.relay.stop()
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    async def hung_up(self, *, seconds: float = 10.0) -> None:
        """Wait until no client is connected any more.

        Raises:
            TimeoutError: A client is still connected after `seconds`.
        """
        await self.relay.hung_up(seconds)

    def on_process(self, process_id: str, *steps: Step) -> None:
        """Serve the requests for a process by these steps in turn, the last one for ever."""
        self._scripts[process_id] = list(steps)

    def on_type(self, task_type: types_pb2.TaskType.ValueType, *steps: Step) -> None:
        """Serve requests of a type, for processes without a script, by these steps in turn."""
        self._scripts[int(task_type)] = list(steps)

    async def received(
        self, count: int, *, seconds: float = 10.0
    ) -> Sequence[processor_service_pb2.ProcessRequest]:
        """Wait until `count` requests have come in all, and return them in their order.

        Raises:
            TimeoutError: They did not come within `seconds`.
        """
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
            return self.requests[:count]

    async def describe(self, _packed: bytes, _context: aio.ServicerContext[bytes, bytes]) -> bytes:
        self.described_count += 1
        described = processor_service_pb2.DescribeResponse()
        described.request_bytes_max = self.request_bytes_max or 0
        return described.SerializeToString()

    async def serve(self, packed: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        request = processor_service_pb2.ProcessRequest.FromString(packed)
        self.called.append(request.process.process_id)
        step, answer = await self.carry_out(request, context)
        if isinstance(step, Refuse):
            await context.abort(step.code, step.text, _trailer(step.code, step.text, step.details))
        return answer

    async def carry_out(
        self,
        request: processor_service_pb2.ProcessRequest,
        context: aio.ServicerContext[bytes, bytes],
    ) -> tuple[Step, bytes]:
        """Carry out the next step of the script; return it, and what it answers, if anything."""
        async with self._alone(request.process.process_id):
            async with self._arrived:
                self.requests.append(request)
                self.metadata.append({str(k): v for k, v in context.invocation_metadata() or ()})
                self._arrived.notify_all()
            step = self._next_step(request)
            return step, await self._answer(step, request)

    @contextlib.asynccontextmanager
    async def _alone(self, process_id: str) -> AsyncIterator[None]:
        earlier = self._leaving.get(process_id)
        left = self._leaving[process_id] = asyncio.Event()
        try:
            if earlier is not None:
                await self._expect_to_leave(earlier, process_id)
            yield
        finally:
            left.set()
            if self._leaving.get(process_id) is left:
                del self._leaving[process_id]

    async def _expect_to_leave(self, earlier: asyncio.Event, process_id: str) -> None:
        try:
            async with asyncio.timeout(_OVERLAP_GRACE_SECONDS):
                await earlier.wait()
        except TimeoutError:
            self.overlaps.append(process_id)

    def _next_step(self, request: processor_service_pb2.ProcessRequest) -> Step:
        script = self._scripts.get(request.process.process_id)
        script = script or self._scripts.get(int(request.task.type)) or [Answer()]
        return script.pop(0) if len(script) > 1 else script[0]

    async def _answer(self, step: Step, request: processor_service_pb2.ProcessRequest) -> bytes:
        match step:
            case Refuse(code, text, details):
                return _refused(code, text, details)
            case Garble(answer):
                return answer
            case Hang(released, response):
                await released.wait()
            case Drop():
                self.relay.cut()
                # The server learns of the cut and cancels what it carries out.
                await asyncio.Event().wait()
                response = None
            case Answer(response):
                pass
            case GarbleFrame() | EndStream():
                response = None
            case _:
                assert_never(step)
        return _packed(response, request)


class _AnyMethod(grpc.GenericRpcHandler):
    """Bytes in, bytes out: a garbled answer could not pass a serializer."""

    def __init__(self, processor: ScriptedProcessor) -> None:
        self._processor = processor

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        match handler_call_details.method:
            case "/progressor.v1.ProcessorService/Process":
                return grpc.unary_unary_rpc_method_handler(self._processor.serve)
            case "/progressor.v1.ProcessorService/ProcessStream" if self._processor.streaming:
                return grpc.stream_stream_rpc_method_handler(self._processor.streams.serve)
            case "/progressor.v1.ProcessorService/Describe" if self._processor.request_bytes_max:
                return grpc.unary_unary_rpc_method_handler(self._processor.describe)
            case _:
                return None


def _packed(
    response: processor_service_pb2.ProcessResponse | None,
    request: processor_service_pb2.ProcessRequest,
) -> bytes:
    if response is None:
        event = types_pb2.NewEvent(payload=request.task.args)
        response = processor_service_pb2.ProcessResponse(events=[event], response=request.task.args)
    return response.SerializeToString()


def _refused(code: grpc.StatusCode, text: str, details: tuple[Message, ...]) -> bytes:
    """Return the answer that says on a stream what a status says of a call."""
    failure = processor_service_pb2.Failure(code=code.value[0], message=text)
    for detail in details:
        if isinstance(detail, error_details_pb2.ErrorInfo):
            failure.reason = detail.reason
        elif isinstance(detail, error_details_pb2.RetryInfo):
            failure.retry_after.CopyFrom(detail.retry_delay)
    return processor_service_pb2.ProcessResponse(failure=failure).SerializeToString()


def _trailer(
    code: grpc.StatusCode, text: str, details: tuple[Message, ...]
) -> tuple[tuple[str, bytes], ...]:
    if not details:
        return ()
    status = status_pb2.Status(code=code.value[0], message=text)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return ((_STATUS_DETAILS_KEY, status.SerializeToString()),)


class ScriptedStreams:
    """Takes steps from streams, answers each in a frame of its own, and counts what it saw."""

    def __init__(self, carry_out: CarryOut) -> None:
        self.opened_count = 0
        self.frame_sizes: list[int] = []
        """How many steps each frame had."""
        self._carry_out = carry_out
        self._open: set[_Stream] = set()
        self._changed = asyncio.Condition()

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def serve(self, _frames: object, context: Context) -> None:
        self.opened_count += 1
        stream = _Stream(self, context)
        self._open.add(stream)
        try:
            end = await stream.run(self._carry_out)
        finally:
            self._open.discard(stream)
            await self.note()
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.text)

    async def write(self, frame: frames_pb2.StepAnswersFrame) -> None:
        for stream in tuple(self._open):
            await stream.write(frame)

    async def until(self, reached: Callable[["ScriptedStreams"], bool]) -> None:
        """Wait until a condition on what was counted holds, 10 s at most."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: reached(self))

    async def note(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Stream:
    def __init__(self, streams: ScriptedStreams, context: Context) -> None:
        self._streams, self._context = streams, context
        self._writing = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._end: asyncio.Future[EndStream] = asyncio.get_running_loop().create_future()

    async def run(self, carry_out: CarryOut) -> EndStream:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(group, carry_out))
            end = await self._end
            reading.cancel()
            for task in self._tasks.values():
                task.cancel()
        return end

    async def write(self, frame: frames_pb2.StepAnswersFrame) -> None:
        await self._write(frame.SerializeToString())

    async def _read(self, group: asyncio.TaskGroup, carry_out: CarryOut) -> None:
        while isinstance(packed := await self._context.read(), bytes):
            frame = processor_service_pb2.ProcessStreamRequest.FromString(packed)
            self._streams.frame_sizes.append(len(frame.steps))
            for step in frame.steps:
                self._tasks[step.step_id] = group.create_task(self._answer(step, carry_out))
            for step_id in frame.cancelled:
                if step_id in self._tasks:
                    self._tasks[step_id].cancel()
            await self._streams.note()
        self._finish(EndStream())

    async def _answer(self, asked: processor_service_pb2.StreamedStep, carry_out: CarryOut) -> None:
        step, packed = await carry_out(asked.request, self._context)
        if isinstance(step, GarbleFrame):
            await self._write(GARBAGE)
        elif isinstance(step, EndStream):
            self._finish(step)
        else:
            raw = frames_pb2.RawStepAnswer(step_id=asked.step_id, response=packed)
            await self.write(frames_pb2.StepAnswersFrame(answers=[raw]))

    async def _write(self, packed: bytes) -> None:
        async with self._writing:
            # Cancelled in the midst of it, gRPC would have two writes at once with the next one,
            # and the stream would end without a word.
            writing = asyncio.ensure_future(self._context.write(packed))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait({writing})
                raise

    def _finish(self, end: EndStream) -> None:
        if not self._end.done():
            self._end.set_result(end)
