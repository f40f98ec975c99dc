"""The processor's end of ProcessStream: steps arrive in frames, and each runs as a task.

Invariants:

 1. A step affects no other step: an error of its handler, or of its item in a frame, ends in its
    own answer.
 2. At most `steps_max` steps run at once, over all streams and calls. Further steps of streams are
    queued, where they can still be cancelled; when the queue is full, no frame is read, and HTTP/2
    flow control holds the engine back.
 3. A step that the engine cancelled is cancelled or never started, and not answered.
 4. The end of a stream cancels the handlers of its steps.
 5. No step sees a context variable that another has set, such as the current span.
 6. A step in a call of its own may use the stream that its engine names in the call; the stream
    stays open until that step has ended.
 7. The steps of a turn run one after the other, each on the process as the one before left it,
    until one does more than that, TURN_SECONDS have passed or no slot is free. The others do not
    run.
 8. A drain is announced on every stream; running steps, and steps that were sent before the engine
    received the announcement, are answered before the stream ends.
"""

import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf import message

from progressor import errors
from progressor.domain.processes.intent import TURN_ENDED, TURN_SECONDS
from progressor.internal.v1 import frames_pb2
from progressor.sdk.processor.links import GuestLink, StepLink, StreamLink, TurnLink
from progressor.sdk.processor.verdicts import failure, text_of_step
from progressor.sdk.transport.connection import MESSAGE_BYTES_MAX
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire.frames import Outbox

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
AnswerStep: TypeAlias = Callable[
    [pb.ProcessRequest, StepLink | None], Awaitable[pb.ProcessResponse]
]

STREAM_KEY, STEP_KEY = "progressor-stream", "progressor-step-id"
"""Metadata: the name of a stream, and the step of a call of its own that makes calls on it."""

QUEUE_STEPS_MAX = 10_000
QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""How much may be queued before no more frames are read."""

_ANSWER_BYTES_MAX = MESSAGE_BYTES_MAX - 64
"""The largest answer in a frame, without its step_id."""

_CROSSING_SECONDS = 1.0
"""How long an idle stream stays open after the drain was announced, for steps on their way."""

_CANCELLED = failure(grpc.StatusCode.ABORTED, "the handler was cancelled", "").SerializeToString()
_TURN_ENDED = failure(
    grpc.StatusCode.UNAVAILABLE, "the turn ended before this step", TURN_ENDED
).SerializeToString()
_UNREADABLE = failure(
    grpc.StatusCode.INTERNAL, "the request is not a ProcessRequest", "INVALID_REQUEST"
).SerializeToString()

_log = logging.getLogger(__name__)

# The step_id and the serialized response; None: the announcement of the drain; or a step's call.
_Item: TypeAlias = tuple[int, bytes] | frames_pb2.RawStepCall | None


class StepServer:
    """The steps of one server: its streams, the count of running steps, and the queued ones."""

    def __init__(self, answer: AnswerStep, steps_max: int) -> None:
        self.answer = answer
        self._steps_max = steps_max
        self._count = 0
        self._queue: collections.OrderedDict[tuple[_Stream, int], bytes] = collections.OrderedDict()
        self._queue_bytes = 0
        self._shortened = asyncio.Event()
        self._streams: set[_Stream] = set()
        # By the names that engines have given them.
        self._named: dict[str, _Stream] = {}
        self._opened = asyncio.Event()
        self._leaving = False

    def take(self) -> bool:
        """Take a slot for a step; False: all are taken."""
        if self._count >= self._steps_max:
            return False
        self._count += 1
        return True

    def release(self) -> None:
        """Release a slot, and start the step that has been queued longest."""
        self._count -= 1
        if self._queue and self._count < self._steps_max:
            self._count += 1
            (stream, step_id), packed = self._queue.popitem(last=False)
            self._shorten_by(packed)
            stream.begin(step_id, packed)

    def enqueue(self, stream: "_Stream", step_id: int, packed: bytes) -> None:
        """Queue a step until a slot is free."""
        self._queue[stream, step_id] = packed
        self._queue_bytes += len(packed)

    def dequeue(self, stream: "_Stream", step_id: int) -> None:
        """Remove a step from the queue."""
        self._shorten_by(self._queue.pop((stream, step_id)))

    async def room(self) -> None:
        """Wait until the queue has room for another frame."""
        while len(self._queue) >= QUEUE_STEPS_MAX or self._queue_bytes >= QUEUE_BYTES_MAX:
            self._shortened.clear()
            await self._shortened.wait()

    async def serve_stream(self, _frames: object, context: Context) -> None:
        """Answer one stream until the engine closes it or this server drains."""
        stream, name = _Stream(context, self), _metadata(context).get(STREAM_KEY, "")
        self._streams.add(stream)
        self._named[name] = stream
        opened, self._opened = self._opened, asyncio.Event()
        opened.set()
        if self._leaving:
            stream.leave()
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._named.pop(name, None)
        if stream.garbled:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a frame cannot be read")

    def guest_link(self, context: Context) -> GuestLink | None:
        """Return the link of a step in a call of its own; None: its engine names no stream."""
        metadata = _metadata(context)
        name, step_id = metadata.get(STREAM_KEY, ""), metadata.get(STEP_KEY, "")
        return GuestLink(self, name, int(step_id)) if name and step_id.isdecimal() else None

    async def find(self, name: str) -> "_Stream | None":
        """Return the stream of a name; the engine may have opened it together with the call."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CROSSING_SECONDS):
                while name not in self._named:
                    await self._opened.wait()
        stream = self._named.get(name)
        return None if stream is None or stream.has_ended else stream

    def leave(self) -> None:
        """Announce the drain; each stream ends when its last step is answered."""
        self._leaving = True
        for stream in self._streams:
            stream.leave()

    def _shorten_by(self, packed: bytes) -> None:
        self._queue_bytes -= len(packed)
        self._shortened.set()


@dataclasses.dataclass(slots=True)
class _Turn:
    """The steps of a turn that wait for the one that runs, ``running``; ``first`` is its name."""

    first: int
    running: int
    ends_at: float = math.inf
    waiting: collections.deque[frames_pb2.RawStep] = dataclasses.field(
        default_factory=collections.deque
    )


class _Stream:
    """One stream, from its first frame to its last."""

    def __init__(self, wire: Context, server: StepServer) -> None:
        self.garbled = False
        self._wire, self._server = wire, server
        # The unanswered steps; None: queued.
        self._steps: dict[int, asyncio.Task[None] | None] = {}
        # By their first steps.
        self._turns: dict[int, _Turn] = {}
        self._answers: Outbox[_Item] = Outbox(size=_size)
        self._group: asyncio.TaskGroup = asyncio.TaskGroup()
        self._calls: dict[int, asyncio.Future[frames_pb2.RawStepCallResult]] = {}
        self._guest_count = 0
        self._last_call_id = 0
        self.loop = asyncio.get_running_loop()
        self._leaving = self._read_all = False
        self._over = asyncio.Event()
        # The end of another step may start this one; its context must not leak into it.
        self._context = contextvars.copy_context()

    async def run(self) -> None:
        """Answer until no more steps can come. Cancelled, it cancels its steps."""
        try:
            async with self._group:
                self._group.create_task(self._answers.run(self._write), name="frames of answers")
                reading = self._group.create_task(self._read(), name="frames of steps")
                try:
                    await self._over.wait()
                finally:
                    # If the stream breaks, no step may start while the others end.
                    self._over.set()
                    self._clear_queue()
                reading.cancel()
                self._answers.close()
                self._cancel(tuple(self._steps))
        finally:
            self._forget()

    def leave(self) -> None:
        """Announce the drain, and end once all steps are answered."""
        if self._over.is_set():
            return
        self._leaving = True
        self._answers.put(None)
        self._end_when_done()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be asked or answered."""
        return self._over.is_set()

    def admit(self) -> None:
        """Stay open for a step in a call of its own until `dismiss`."""
        self._guest_count += 1

    def dismiss(self) -> None:
        """End what `admit` began."""
        self._guest_count -= 1
        self._end_when_done()

    async def ask(self, call: frames_pb2.RawStepCall) -> frames_pb2.RawStepCallResult:
        """Return the result of a step's call; raise LeaseLostError if the stream ends."""
        if self._over.is_set():
            raise errors.LeaseLostError
        self._last_call_id = call.call_id = self._last_call_id + 1
        answer: asyncio.Future[frames_pb2.RawStepCallResult] = self.loop.create_future()
        self._calls[call.call_id] = answer
        self._answers.put(call)
        try:
            return await answer
        finally:
            del self._calls[call.call_id]

    def begin(self, step_id: int, packed: bytes) -> None:
        """Run a step that has a slot."""
        self._steps[step_id] = self._group.create_task(
            self._read_step(step_id, packed), name="step", context=self._context.copy()
        )

    async def _read(self) -> None:
        while isinstance(packed := await self._next_frame(), bytes):
            try:
                frame = frames_pb2.StepsFrame.FromString(packed)
            except message.DecodeError:
                self.garbled = True
                self._over.set()
                return
            for step in frame.steps:
                if step.turn:
                    self._take_turn(step)
                else:
                    self._receive(step.step_id, step.request)
            if frame.cancelled:
                self._cancel(frame.cancelled)
            for result in frame.results:
                asked = self._calls.get(result.call_id)
                if asked is not None and not asked.done():
                    asked.set_result(result)
            await self._server.room()
        self._read_all = True
        self._end_when_done()

    async def _next_frame(self) -> object:
        try:
            return await self._wire.read()
        except grpc.aio.BaseError:
            # As for `_write`.
            self._over.set()
            return None

    def _receive(self, step_id: int, packed: bytes) -> None:
        if step_id in self._steps or self._over.is_set():
            return
        if self._server.take():
            self.begin(step_id, packed)
        else:
            self._steps[step_id] = None
            self._server.enqueue(self, step_id, packed)

    def _take_turn(self, step: frames_pb2.RawStep) -> None:
        if step.turn == step.step_id:
            self._turns[step.turn] = _Turn(step.turn, step.turn)
            self._receive(step.step_id, step.request)
            return
        turn = self._turns.get(step.turn)
        if turn is not None:
            turn.waiting.append(step)
        elif not self._over.is_set():
            self._answers.put((step.step_id, _TURN_ENDED))

    def _cancel(self, step_ids: Sequence[int]) -> None:
        for turn in tuple(self._turns.values()):
            if {turn.running, *(it.step_id for it in turn.waiting)} & set(step_ids):
                self._end_turn(turn)
        for step_id in step_ids:
            if step_id in self._steps:
                task = self._steps.pop(step_id)
                if task is None:
                    self._server.dequeue(self, step_id)
                else:
                    # A task that is cancelled before it starts never runs, so a callback.
                    task.add_done_callback(self._release)
                    task.cancel()
        self._end_when_done()

    def _release(self, _task: "asyncio.Task[None]") -> None:
        self._server.release()

    async def _read_step(self, step_id: int, packed: bytes) -> None:
        turn = self._turns.get(step_id)
        try:
            request = pb.ProcessRequest.FromString(packed)
        except message.DecodeError:
            if turn is not None:
                self._end_turn(turn)
            self._answer(step_id, _UNREADABLE)
            return
        if turn is not None:
            turn.ends_at = self.loop.time() + TURN_SECONDS
        await self._run_step(step_id, request, turn)

    async def _run_step(self, step_id: int, request: pb.ProcessRequest, turn: _Turn | None) -> None:
        response = pb.ProcessResponse()
        has_lease = turn is None or step_id == turn.first
        try:
            link = StreamLink(self, step_id) if has_lease else TurnLink(self, step_id)
            response = await self._server.answer(request, link)
            answer = response.SerializeToString()
        except asyncio.CancelledError:
            # Unless the engine cancelled the step, the handler cancelled itself.
            if turn is not None:
                self._end_turn(turn)
            self._answer(step_id, _CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001  # a bug ends this step alone
            _log.exception("step failed with an unexpected error (%s)", text_of_step(request))
            text = f"Unexpected {type(error)}: {error}"
            response = failure(grpc.StatusCode.UNKNOWN, text, "")
            answer = response.SerializeToString()
        self._answer(step_id, answer)
        if turn is not None:
            self._go_on(turn, request, response)

    def _go_on(self, turn: _Turn, request: pb.ProcessRequest, response: pb.ProcessResponse) -> None:
        """Begin the next step of a turn, or end the turn."""
        is_over = self._leaving or self._over.is_set() or self.loop.time() >= turn.ends_at
        may_go_on = not is_over and _continues_turn(response)
        if not (may_go_on and turn.waiting and self._server.take()):
            self._end_turn(turn)
            return
        raw = turn.waiting.popleft()
        turn.running = raw.step_id
        try:
            following = _following(request, response, raw)
        except message.DecodeError:
            self._server.release()
            self._answers.put((raw.step_id, _UNREADABLE))
            self._end_turn(turn)
            return
        self._steps[raw.step_id] = self._group.create_task(
            self._run_step(raw.step_id, following, turn),
            name="step", context=self._context.copy(),
        )  # fmt: skip

    def _end_turn(self, turn: _Turn) -> None:
        """Answer the steps of a turn that will not run. Safe to repeat."""
        self._turns.pop(turn.first, None)
        while turn.waiting:
            step = turn.waiting.popleft()
            if not self._over.is_set():
                self._answers.put((step.step_id, _TURN_ENDED))

    def _answer(self, step_id: int, answer: bytes) -> None:
        if step_id not in self._steps:
            return
        del self._steps[step_id]
        self._server.release()
        if len(answer) > _ANSWER_BYTES_MAX:
            text = f"the answer must be at most {_ANSWER_BYTES_MAX} bytes, got {len(answer)}"
            too_large = failure(grpc.StatusCode.OUT_OF_RANGE, text, "MESSAGE_TOO_LARGE")
            answer = too_large.SerializeToString()
        self._answers.put((step_id, answer))
        if not self._steps:
            self._end_when_done()

    async def _write(self, items: Sequence[_Item]) -> None:
        frame = frames_pb2.StepAnswersFrame(turns=True)
        add = frame.answers.add
        for item in items:
            if item is None:
                frame.draining = True
            elif isinstance(item, frames_pb2.RawStepCall):
                frame.calls.append(item)
            else:
                # Half the time of giving both to `add`.
                raw = add()
                raw.step_id, raw.response = item
        try:
            await self._wire.write(frame.SerializeToString())
        except grpc.aio.BaseError:
            # The engine is gone; gRPC will cancel this stream.
            self._over.set()

    def _end_when_done(self) -> None:
        if self._steps or self._guest_count:
            return
        if self._read_all:
            self._over.set()
        elif self._leaving:
            # The engine may have sent steps before it received the announcement.
            asyncio.get_running_loop().call_later(_CROSSING_SECONDS, self._end_if_done)

    def _end_if_done(self) -> None:
        if not self._steps and not self._guest_count:
            self._over.set()

    def _clear_queue(self) -> None:
        for step_id, task in tuple(self._steps.items()):
            if task is None:
                del self._steps[step_id]
                self._server.dequeue(self, step_id)

    def _forget(self) -> None:
        """Release the slots of steps that never started, and end the calls of plain handlers."""
        for asked in self._calls.values():
            if not asked.done():
                asked.set_exception(errors.LeaseLostError())
        while self._steps:
            self._steps.popitem()
            self._server.release()


def _continues_turn(response: pb.ProcessResponse) -> bool:
    """Whether the next step of a turn may run: as `domain` has it of the outcome."""
    action = response.WhichOneof("action")
    if action is not None:
        return action == "reject"
    return not (response.WhichOneof("timer") or response.timers or response.messages)


def _following(
    request: pb.ProcessRequest, response: pb.ProcessResponse, raw: frames_pb2.RawStep
) -> pb.ProcessRequest:
    """Return the next request of a turn, with the process as a response leaves it."""
    following = pb.ProcessRequest.FromString(raw.request)
    process, history = following.process, following.history
    process.CopyFrom(request.process)
    history.extend(request.history)
    if response.HasField("reject"):
        return following
    if response.HasField("aux_state"):
        process.aux_state, process.state_version = response.aux_state, response.state_version
    if response.HasField("metadata"):
        process.metadata.CopyFrom(response.metadata)
    for event in response.events:
        process.last_event_id += 1
        history.add(
            event_id=process.last_event_id,
            payload=event.payload,
            format_version=event.format_version,
            metadata=event.metadata if event.HasField("metadata") else None,
            task_id=request.task.task_id,
        ).occurred_at.GetCurrentTime()
    if raw.HasField("history_last"):
        del history[: max(0, len(history) - raw.history_last)]
    return following


def _metadata(context: Context) -> dict[str, Any]:
    return dict(context.invocation_metadata() or ())


def _size(item: _Item) -> int:
    if isinstance(item, frames_pb2.RawStepCall):
        return item.ByteSize()
    return 0 if item is None else len(item[1])
