"""The processor's end of ProcessStream: steps that come in frames, each carried out by itself.

What must hold:

 1. Each step is a task: whatever happens in one, the others go on; what a handler or a frame's
    item does wrong is reported in the answer to that step.
 2. At most `steps_max` steps are in hand, over all streams and calls. Over it, steps of streams
    wait in line, where they can still be cancelled; when the line is full, no frame is read, and
    HTTP/2 holds the engine back.
 3. A step that the engine cancelled is ended, or never begun, and not answered.
 4. A stream that ends takes the handlers of its steps with it.
 5. No step sees a context variable that another has set: the current span, say.
 6. On leaving, every stream gets a notice; the steps in hand are answered, and those that crossed
    with the word of leaving, before the stream ends.
"""

import asyncio
import collections
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

import grpc
from google.protobuf import message

from progressor.internal.v1 import frames_pb2
from progressor.sdk.processor import words
from progressor.sdk.processor.verdicts import failure
from progressor.sdk.transport.connection import MESSAGE_BYTES_MAX
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire.frames import Outbox

Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]
Ask: TypeAlias = Callable[[pb.ProcessRequest, Executor], Awaitable[pb.ProcessResponse]]

LINE_STEPS_MAX = 10_000
LINE_BYTES_MAX = 64 * 1024 * 1024
"""What may wait in line, or the frame that is read last more than that."""

_ANSWER_BYTES_MAX = MESSAGE_BYTES_MAX - 64
"""What a frame holds of one answer, besides its step_id."""

_CROSSING_SECONDS = 1.0
"""How long an engine that was told of the leaving has to hang up, once nothing is in hand."""

_CANCELLED = failure(
    grpc.StatusCode.UNAVAILABLE, "the handler was cancelled", ""
).SerializeToString()
_UNREADABLE = failure(
    grpc.StatusCode.INTERNAL, "the request is not a ProcessRequest", "INVALID_REQUEST"
).SerializeToString()

_log = logging.getLogger(__name__)

# The step_id and the serialized response; None: the word of leaving.
_Item: TypeAlias = tuple[int, bytes] | None


class Hands:
    """How many steps a server has in hand, and which of its streams wait for one to end."""

    def __init__(self, steps_max: int) -> None:
        self._steps_max = steps_max
        self._count = 0
        self._line: collections.OrderedDict[tuple[_Stream, int], bytes] = collections.OrderedDict()
        self._line_bytes = 0
        self._thinned = asyncio.Event()

    def take(self) -> bool:
        """Take one more step in hand; False: there are too many."""
        if self._count >= self._steps_max:
            return False
        self._count += 1
        return True

    def let_go(self) -> None:
        """Have one step less, and begin the one that waits longest."""
        self._count -= 1
        if self._line and self._count < self._steps_max:
            self._count += 1
            (stream, step_id), packed = self._line.popitem(last=False)
            self._thin_by(packed)
            stream.begin(step_id, packed)

    def line_up(self, stream: "_Stream", step_id: int, packed: bytes) -> None:
        """Keep a step until its turn comes."""
        self._line[stream, step_id] = packed
        self._line_bytes += len(packed)

    def leave_line(self, stream: "_Stream", step_id: int) -> None:
        """Forget a step whose turn has not come."""
        self._thin_by(self._line.pop((stream, step_id)))

    async def room(self) -> None:
        """Wait until the line has room for another frame."""
        while len(self._line) >= LINE_STEPS_MAX or self._line_bytes >= LINE_BYTES_MAX:
            self._thinned.clear()
            await self._thinned.wait()

    def _thin_by(self, packed: bytes) -> None:
        self._line_bytes -= len(packed)
        self._thinned.set()


class Streams:
    """All streams of one server."""

    def __init__(self, ask: Ask, threads: Executor, hands: Hands) -> None:
        self._ask, self._threads, self._hands = ask, threads, hands
        self._streams: set[_Stream] = set()
        self._leaving = False

    async def serve(self, context: Context) -> None:
        """Answer one stream until the engine, or this server, leaves it."""
        stream = _Stream(context, self._ask, self._threads, self._hands)
        self._streams.add(stream)
        if self._leaving:
            stream.leave()
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
        if stream.garbled:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a frame cannot be read")

    def leave(self) -> None:
        """Tell all engines to send no more steps; each stream ends when its last is answered."""
        self._leaving = True
        for stream in self._streams:
            stream.leave()


class _Stream:
    """One stream, from its first frame to its last."""

    def __init__(self, wire: Context, ask: Ask, threads: Executor, hands: Hands) -> None:
        self.garbled = False
        self._wire, self._ask, self._threads, self._hands = wire, ask, threads, hands
        # What is to be answered; None: it waits in line.
        self._steps: dict[int, asyncio.Task[None] | None] = {}
        self._answers: Outbox[_Item] = Outbox(size=_size)
        self._group: asyncio.TaskGroup = asyncio.TaskGroup()
        self._leaving = self._read_all = False
        self._over = asyncio.Event()
        # The end of another step may begin this one, whose context must not leak into it.
        self._context = contextvars.copy_context()

    async def run(self) -> None:
        """Answer until there is nothing more to come. Cancelled, it cancels its steps."""
        try:
            async with self._group:
                self._group.create_task(self._answers.run(self._write), name="frames of answers")
                reading = self._group.create_task(self._read(), name="frames of steps")
                try:
                    await self._over.wait()
                finally:
                    # Where it is cut off, nothing may begin any more while its steps end.
                    self._over.set()
                    self._leave_line()
                reading.cancel()
                self._answers.close()
                self._cancel(tuple(self._steps))
        finally:
            self._forget()

    def leave(self) -> None:
        """Say so to the engine, and end once there is nothing to answer."""
        if self._over.is_set():
            return
        self._leaving = True
        self._answers.put(None)
        self._end_when_done()

    def begin(self, step_id: int, packed: bytes) -> None:
        """Carry out a step that was taken in hand."""
        self._steps[step_id] = self._group.create_task(
            self._carry_out(step_id, packed), name="step", context=self._context.copy()
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
                self._receive(step.step_id, step.request)
            if frame.cancelled:
                self._cancel(frame.cancelled)
            await self._hands.room()
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
        if self._hands.take():
            self.begin(step_id, packed)
        else:
            self._steps[step_id] = None
            self._hands.line_up(self, step_id, packed)

    def _cancel(self, step_ids: Sequence[int]) -> None:
        for step_id in step_ids:
            if step_id in self._steps:
                task = self._steps.pop(step_id)
                if task is None:
                    self._hands.leave_line(self, step_id)
                else:
                    # Not told by itself: one that is cancelled before it begins never runs.
                    task.add_done_callback(self._let_go)
                    task.cancel()
        self._end_when_done()

    def _let_go(self, _task: "asyncio.Task[None]") -> None:
        self._hands.let_go()

    async def _carry_out(self, step_id: int, packed: bytes) -> None:
        try:
            request = pb.ProcessRequest.FromString(packed)
        except message.DecodeError:
            self._answer(step_id, _UNREADABLE)
            return
        try:
            response = await self._ask(request, self._threads)
            answer = response.SerializeToString()
        except asyncio.CancelledError:
            # If no one asked for that, the handler cancelled itself: reported as in a unary call.
            self._answer(step_id, _CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001  # a bug is this step's end, and no neighbour's
            _log.exception("step failed with an unexpected error (%s)", words.of_step(request))
            text = f"Unexpected {type(error)}: {error}"
            answer = failure(grpc.StatusCode.UNKNOWN, text, "").SerializeToString()
        self._answer(step_id, answer)

    def _answer(self, step_id: int, answer: bytes) -> None:
        if step_id not in self._steps:
            return
        del self._steps[step_id]
        self._hands.let_go()
        if len(answer) > _ANSWER_BYTES_MAX:
            text = f"the answer has {len(answer)} bytes, more than {_ANSWER_BYTES_MAX}"
            too_large = failure(grpc.StatusCode.OUT_OF_RANGE, text, "MESSAGE_TOO_LARGE")
            answer = too_large.SerializeToString()
        self._answers.put((step_id, answer))
        if not self._steps:
            self._end_when_done()

    async def _write(self, items: Sequence[_Item]) -> None:
        frame = frames_pb2.StepAnswersFrame()
        add = frame.answers.add
        for item in items:
            if item is None:
                frame.draining = True
            else:
                # Half the time of giving both to `add`.
                raw = add()
                raw.step_id, raw.response = item
        try:
            await self._wire.write(frame.SerializeToString())
        except grpc.aio.BaseError:
            # The engine is gone, and gRPC will say so by cancelling this stream.
            self._over.set()

    def _end_when_done(self) -> None:
        if self._steps:
            return
        if self._read_all:
            self._over.set()
        elif self._leaving:
            # Steps may be on their way that were written before the engine heard of the leaving.
            asyncio.get_running_loop().call_later(_CROSSING_SECONDS, self._end_if_done)

    def _end_if_done(self) -> None:
        if not self._steps:
            self._over.set()

    def _leave_line(self) -> None:
        for step_id, task in tuple(self._steps.items()):
            if task is None:
                del self._steps[step_id]
                self._hands.leave_line(self, step_id)

    def _forget(self) -> None:
        """Let go of the steps that were cut off before they began."""
        while self._steps:
            self._steps.popitem()
            self._hands.let_go()


def _size(item: _Item) -> int:
    return 0 if item is None else len(item[1])
