"""One ProcessStream: frames of many steps, each asked and answered independently.

Invariants:

 1. Every `ask` ends exactly once: by its answer, its timeout, its cancellation or the end of the
    stream. Late and duplicate answers, and answers to steps that were never sent, are dropped.
 2. None means that the processor has not seen the step, so that it may be sent elsewhere within
    the same attempt. It is returned only for steps that were never written, or whose stream was
    rejected with UNIMPLEMENTED, UNAUTHENTICATED or RESOURCE_EXHAUSTED before any answer arrived.
 3. If a step that was written times out or is cancelled, the processor is notified. A step that
    was not written yet never is. Either way its request is released.
 4. Nothing received on the stream raises outside it. An invalid item fails that item; an invalid
    frame ends the stream.
 5. After `draining` no step is written. The stream closes once all written steps have ended.
 6. The queue of outgoing items is bounded; when it is full, a step is sent as a call of its own.
    The stream to a processor that reads nothing while steps time out is closed: the processor
    may be waiting for steps to end whose cancellations it has not read.
 7. A step that is sent in a call of its own may make its calls on the stream while that call lasts;
    a draining stream waits for it.

 8. What a step of a turn asks before it has a lease of its own waits until it gets one (`Lease`).

A step costs one future, two dictionary entries and no asyncio task; all timeouts share one timer.
"""

import asyncio
import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import grpc
from google.protobuf import message
from grpc import aio

from progressor.domain.processes.intent import Failed
from progressor.domain.processes.task import RunningTask
from progressor.internal.v1 import frames_pb2
from progressor.processor import failures
from progressor.processor.step_calls import CALLS_MAX, Result, StepCalls
from progressor.wire.frames import Outbox
from progressor.wire.stream_call import StreamCall

STEP_BYTES_MAX = 1024 * 1024
"""A larger step is sent in a call of its own, which delays no other."""

LINE_MAX = 65_536
"""Steps queued to be written, including those that were given up meanwhile."""

STALL_SECONDS = 10.0
"""How long a frame may wait for the processor to read it while steps time out behind it."""

STREAM_KEY, STEP_KEY = "progressor-stream", "progressor-step-id"
"""Metadata: the name of a stream, and the step of a call of its own that makes calls on it."""

_SWEEP_SECONDS = 0.01
"""Between two checks for timed-out steps, unless a new one times out earlier."""

_UNANSWERED = failures.invalid_answer("answers.response: must be set")

_CLOSED = "the channel was closed during the call"

_CLOCK_SECONDS = 0.001
"""How early a timer may go off: the event loop counts in milliseconds."""


class Lease:
    """The lease that a step of a turn gets once the steps before it are settled."""

    __slots__ = ("taken", "wanted")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wanted: asyncio.Future[None] = loop.create_future()
        """Done once the step asks for something that takes a lease."""
        self.taken: asyncio.Future[None] = loop.create_future()


class Asked:
    """One step on its way: `request` is None once it was written.

    ``turn`` is the step_id of the first step of its turn; 0: it is in none. ``lease`` is of one
    that is asked ahead.
    """

    __slots__ = (
        "answer", "deadline", "history_last", "lease", "request", "step_id", "task", "turn",
    )  # fmt: skip

    def __init__(
        self,
        step_id: int,
        request: bytes,
        deadline: float,
        answer: "asyncio.Future[bytes | Failed | None]",
        task: RunningTask | None,
    ) -> None:
        self.step_id = step_id
        self.request: bytes | None = request
        self.deadline = deadline
        self.answer = answer
        self.task = task
        self.turn = 0
        self.history_last: int | None = None
        self.lease: Lease | None = None


# A step, the id of a step whose caller has stopped waiting, or the result of a step's call.
_Item: TypeAlias = Asked | int | Result


class Stream:
    """A stream to one processor, from its opening to its end; not to be opened again."""

    def __init__(
        self,
        target: str,
        call: Callable[[], StreamCall[bytes, bytes]],
        step_calls: StepCalls | None = None,
        name: str = "",
    ) -> None:
        """Open nothing; `open` does. Needs a running event loop.

        Args:
            target: For the names of tasks.
            call: Begins the RPC.
            step_calls: Serves what steps ask for; None: nothing does.
            name: Unique among the streams of all replicas, for its guests.
        """
        self.is_open = False
        self.was_refused = False
        """Whether the processor has no such method."""
        self.broke = False
        """Whether it ended without draining although its connection did not end."""
        self.takes_turns = False
        """Whether the processor has announced that it runs turns."""
        self.ended_early = False
        """Whether it broke or drained before any answer, as another stream probably would."""
        self.was_unavailable = False
        """Whether it ended with UNAVAILABLE before any answer."""
        self._has_answered = False
        self._draining = False
        self._target, self._name = target, name
        self._begin = call
        self._call: StreamCall[bytes, bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, Asked] = {}
        # The tasks of steps that were sent in calls of their own, by step_id.
        self._guests: dict[int, RunningTask] = {}
        self._last_id = 0
        self._outbox: Outbox[_Item] = Outbox(size=_size)
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = math.inf
        self._writing_since = math.inf
        self._has_stalled = False
        self._step_calls = step_calls
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will arrive."""
        return self._task is None or self._task.done()

    def open(self, group: asyncio.TaskGroup) -> None:
        """Begin to write and to read, in tasks of the group."""
        # An empty context; otherwise the stream would keep the context of its first caller.
        self._task = group.create_task(
            self._run(group), name=f"stream of {self._target}", context=contextvars.Context()
        )
        self.is_open = True

    async def ask(
        self, request: bytes, deadline: float, task: RunningTask | None = None
    ) -> bytes | Failed | None:
        """Return the serialized answer to a serialized step, or the reason for having none.

        On cancellation the processor is notified.

        Args:
            request: At most STEP_BYTES_MAX.
            deadline: When it ends by itself, by the event loop's clock; the step can extend it.
            task: Whose step this is, for its calls; None: it makes none.

        Returns:
            None: the processor has not seen it.
        """
        if not self.is_open or len(self._outbox) >= LINE_MAX:
            return None
        step = self._send(request, deadline, task)
        try:
            return await step.answer
        except asyncio.CancelledError:
            self.give_up(step)
            raise

    def ask_turn(
        self,
        requests: Sequence[tuple[bytes, RunningTask]],
        deadline: float,
        history_last: int | None,
    ) -> Sequence[Asked]:
        """Send the steps of a turn, whose answers are those of `ask`; empty: nothing was sent.

        Each ends by its answer or by `give_up`. Only the first has a lease.
        """
        if not (self.is_open and self.takes_turns) or len(self._outbox) >= LINE_MAX:
            return ()
        steps = [self._send(request, deadline, task) for request, task in requests]
        for step in steps:
            step.turn, step.history_last = steps[0].step_id, history_last
        for step in steps[1:]:
            step.lease = Lease(self._loop)
        return steps

    def give_up(self, step: Asked) -> None:
        """Stop waiting for a step, and notify the processor; nothing if it was answered."""
        if step.lease is not None:
            step.lease.taken.cancel()
        if self._waiting.pop(step.step_id, None) is not None:
            self._take_back(step)

    def _send(self, request: bytes, deadline: float, task: RunningTask | None) -> Asked:
        self._last_id = step_id = self._last_id + 1
        step = Asked(step_id, request, deadline, self._loop.create_future(), task)
        self._waiting[step_id] = step
        self._outbox.put(step)
        if deadline < self._sweep_at:
            self._sweep_by(deadline)
        return step

    @contextlib.contextmanager
    def guest(self, task: RunningTask) -> Iterator[Sequence[tuple[str, str]]]:
        """Let a step in a call of its own make its calls here; yield the metadata of that call."""
        self._last_id = step_id = self._last_id + 1
        self._guests[step_id] = task
        try:
            yield (STREAM_KEY, self._name), (STEP_KEY, str(step_id))
        finally:
            del self._guests[step_id]
            self._leave_when_done()

    def close(self) -> None:
        """End at once; pending steps fail with "channel closed". Safe to repeat."""
        self._end(failures.processor_unavailable(_CLOSED))
        if self._task is not None:
            self._task.cancel()

    async def _run(self, group: asyncio.TaskGroup) -> None:
        self._call = call = self._begin()
        writing = group.create_task(self._outbox.run(self._write), name=f"frames to {self._target}")
        end: Failed | None = failures.processor_unavailable("the engine leaves")
        try:
            end = await self._read(call, group)
        finally:
            writing.cancel()
            for serving in self._serving:
                serving.cancel()
            call.cancel()
            self._end(end)

    async def _read(
        self, call: StreamCall[bytes, bytes], group: asyncio.TaskGroup
    ) -> Failed | None:
        """Deliver answers until the stream ends, and return the failure of the other steps."""
        try:
            while isinstance(packed := await call.read(), bytes):
                frame = frames_pb2.StepAnswersFrame.FromString(packed)
                for asked in frame.calls:
                    self._take_call(asked, group)
                self._hand_out(frame)
        except message.DecodeError:
            self._break()
            return failures.processor_unavailable("the stream had a frame that cannot be read")
        except aio.AioRpcError as error:
            return self._end_with(error)
        except asyncio.CancelledError:
            # gRPC also raises this if the call was cancelled while it is read.
            current = asyncio.current_task()
            if current is None or current.cancelling() > 0:
                raise
            why = "the processor stopped reading" if self._has_stalled else _CLOSED
            return failures.processor_unavailable(why)
        if not self._draining:
            self._break()
        return failures.processor_unavailable("the processor ended the stream")

    def _end_with(self, error: aio.AioRpcError) -> Failed | None:
        code = error.code()
        if code is grpc.StatusCode.UNIMPLEMENTED and not self._has_answered:
            self.was_refused = True
            return None
        if not self._has_answered and _declines(error):
            # A call tells why, and of one step alone.
            self._break()
            return None
        if code is grpc.StatusCode.UNAVAILABLE:
            self.was_unavailable = not self._has_answered
        if code not in failures.CUT_OFF:
            self._break()
        return failures.cut_off(error)

    def _break(self) -> None:
        self.broke = True
        self.ended_early = not self._has_answered

    def _hand_out(self, frame: frames_pb2.StepAnswersFrame) -> None:
        waiting = self._waiting
        if frame.turns:
            self.takes_turns = True
        if frame.draining:
            self._draining = True
            self.is_open = False
            self.ended_early = not self._has_answered
        for answer in frame.answers:
            step = waiting.get(answer.step_id)
            # An answer to a step that was not written yet is ignored.
            if step is not None and step.request is None:
                del waiting[answer.step_id]
                self._has_answered = True
                if not step.answer.done():
                    # An empty response is an answer without fields; a missing one is an error.
                    is_answered = answer.HasField("response")
                    step.answer.set_result(answer.response if is_answered else _UNANSWERED)
        self._leave_when_done()

    def _take_call(self, call: frames_pb2.RawStepCall, group: asyncio.TaskGroup) -> None:
        if self._step_calls is None:
            return
        step = self._waiting.get(call.step_id)
        task = self._guests.get(call.step_id) if step is None else step.task
        overloaded = len(self._serving) >= CALLS_MAX
        if task is None or overloaded:
            self._outbox.put(self._step_calls.refuse(call, overloaded=overloaded))
            return
        serving = group.create_task(
            self._serve(self._step_calls, call, step, task), name="call of a step"
        )
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(
        self, calls: StepCalls, call: frames_pb2.RawStepCall, step: Asked | None, task: RunningTask
    ) -> None:
        if step is not None and step.lease is not None and not step.lease.taken.done():
            if not step.lease.wanted.done():
                step.lease.wanted.set_result(None)
            await asyncio.shield(step.lease.taken)
        result, left = await calls.serve(call, task)
        # The deadline of a step in a call of its own is read again when it comes, see CallDeadline.
        if left is not None and step is not None:
            step.deadline = max(step.deadline, self._loop.time() + left.total_seconds())
        if not self.has_ended:
            self._outbox.put(result)

    async def _write(self, items: Sequence[_Item]) -> None:
        frame = frames_pb2.StepsFrame()
        add = frame.steps.add
        for item in items:
            if isinstance(item, int):
                frame.cancelled.append(item)
            elif isinstance(item, Result):
                frame.results.append(item)
            elif item.step_id in self._waiting and item.request is not None:
                if self._draining:
                    self._finish(item, None)
                    continue
                _fill(add(), item, item.request)
                item.request = None
        self._leave_when_done()
        if frame.steps or frame.cancelled or frame.results:
            assert self._call is not None, "it is written to after it was begun"
            self._writing_since = self._loop.time()
            try:
                await self._call.write(frame.SerializeToString())
            except (aio.AioRpcError, asyncio.InvalidStateError):
                # The stream has ended; reading from it raises the reason.
                return
            finally:
                self._writing_since = math.inf

    def _finish(self, step: Asked, answer: Failed | None) -> None:
        self._waiting.pop(step.step_id, None)
        if not step.answer.done():
            step.answer.set_result(answer)

    def _take_back(self, step: Asked) -> None:
        """Cancel the step: notify the processor if the step was written, else drop it."""
        if step.request is None:
            if not self.has_ended:
                self._outbox.put(step.step_id)
        else:
            step.request = b""
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        has_steps = self._waiting or self._guests
        if self._draining and not has_steps and self._call is not None:
            self._call.cancel()

    def _sweep_by(self, deadline: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = self._loop.call_at(deadline, self._end_the_due)
        self._sweep_at = deadline

    def _end_the_due(self) -> None:
        now = self._loop.time()
        latest, following, unread = now + _CLOCK_SECONDS, math.inf, False
        for step in tuple(self._waiting.values()):
            if step.deadline <= latest:
                self._finish(step, failures.STEP_RAN_OUT)
                unread = unread or step.request is not None
                self._take_back(step)
            elif step.deadline < following:
                following = step.deadline
        if unread and now - self._writing_since > STALL_SECONDS and self._call is not None:
            self._has_stalled = True
            self._call.cancel()
        self._sweep, self._sweep_at = None, math.inf
        if self._waiting:
            # Not one timer per step: every check goes over all waiting steps.
            self._sweep_by(max(following, now + _SWEEP_SECONDS))

    def _end(self, answer: Failed | None) -> None:
        self.is_open = False
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for step in tuple(self._waiting.values()):
            self._finish(step, answer if step.request is None else None)


def _declines(error: aio.AioRpcError) -> bool:
    """Return whether the status, before any answer, declines the stream and no step on it."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # Too large is what a message of a step was, or its answer.
        return failures.failure_of(error).reason != failures.MESSAGE_TOO_LARGE
    return error.code() is grpc.StatusCode.UNAUTHENTICATED


def _fill(raw: frames_pb2.RawStep, step: Asked, request: bytes) -> None:
    # Half the time of giving both to `add`.
    raw.step_id = step.step_id
    raw.request = request
    if step.turn:
        raw.turn = step.turn
        if step.history_last is not None:
            raw.history_last = step.history_last


def _size(item: _Item) -> int:
    if isinstance(item, Result):
        return item.ByteSize()
    return 8 if isinstance(item, int) or item.request is None else len(item.request)
