"""Asks a processor to run a step, on a stream or in a call of its own.

Invariants: one `ask` sends a step at most once; every `ask` ends, at the latest by its timeout; a
step that breaks its stream costs the other steps on it one attempt at most.
"""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import grpc
from google.rpc import code_pb2
from grpc import aio

from progressor.clock import Clock
from progressor.domain.processes.event import Event
from progressor.domain.processes.intent import (
    STILL_RUNNING,
    TURN_ENDED,
    Failed,
    Released,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask
from progressor.processor import codec, failures
from progressor.processor.channels import CONNECT_SECONDS, Channels, Connection
from progressor.processor.credentials import CredentialsError
from progressor.processor.reach import Reach, Sizes
from progressor.processor.stream import STEP_BYTES_MAX, Asked, Stream
from progressor.telemetry.traces.spans import record_server

DESCRIBED_FROM_BYTES = 256 * 1024
"""Every processor accepts a step of this size; before a larger one, it is asked for its limit."""

STREAMS_MAX = 2
"""Streams that may decline a step before it is sent in a call."""

SUSPECTS_MAX = 10_000
"""Tasks that are remembered because their stream broke, the latest ones."""

# W3C's headers are visible ASCII, and gRPC raises for anything else. By default a gRPC server takes
# 8 KiB of metadata: baggage of more than 4 goes with the task alone.
_TRACE_KEYS = ("traceparent", "tracestate", "baggage")
_TRACE_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,4094}[\x21-\x7e])?")


class ProcessorClient:
    """Asks the processors of all namespaces."""

    def __init__(
        self, channels: Channels, clock: Clock, *, epoch: int = 1, paused: Collection[str] = ()
    ) -> None:
        """Take the paused namespaces: no step of them is sent, however long it has waited."""
        self._channels = channels
        self._paused = paused
        self._clock = clock
        self._epoch = epoch
        self.reach = Reach(channels, clock)
        self.sizes = Sizes(clock)
        self._loop = asyncio.get_running_loop()
        # Tasks that were on a stream when it failed. One of them may be the cause, for example
        # by an answer that is too large for a frame. Each is sent in a call of its own the next
        # time, so that a task that breaks streams cannot fail the steps of others.
        self._suspects: dict[int, bool] = {}

    async def ask(
        self,
        task: RunningTask,
        history: tuple[Event, ...],
        *,
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> codec.StepOutcome | Released:
        """Ask the processor to run one attempt of a task, and return its answer.

        Released: it was not sent, since its namespace was paused before its target was connected.
        Errors of the processor and of the connection are returned, never raised. On
        cancellation the processor is notified, but may have acted already.

        Args:
            task: Any but a `remove`, which is done by the engine.
            history: The events that the task asked for, in its order.
            namespace: Where the processor is, and how large a payload may be.
            timeout: From now on; the step ends by itself when it has passed.
        """
        deadline = self._clock.now() + timeout
        request = codec.encode_request(task, history, deadline, epoch=self._epoch)
        if len(request) > failures.MESSAGE_BYTES_MAX:
            return failures.message_too_large(
                f"the request has {len(request)} bytes, more than {failures.MESSAGE_BYTES_MAX}"
            )
        target = _target_of(task)
        if target is not None:
            if target not in namespace.processor_targets:
                return failures.target_not_found(target)
            namespace = _bound(namespace, target)
        packed = await self._exchange(request, task, history, namespace, timeout.total_seconds())
        answer = _decoded(packed, task, namespace) if isinstance(packed, bytes) else packed
        is_answered = isinstance(packed, bytes)
        return self._judged(answer, task, namespace, timeout, target, is_answered=is_answered)

    async def ask_turn(
        self,
        task: RunningTask,
        history: tuple[Event, ...],
        line: Callable[[], Awaitable[Sequence[RunningTask]]],
        *,
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> "AskedTurn | None":
        """Ask the processor for the steps of a task and of those in the line behind it.

        None: nothing was sent. The processor takes no turns, or the task is to be asked alone. What
        is returned must be closed.
        """
        try:
            connection = await self._channels.take(namespace)
        except CredentialsError:
            return None
        turn = None
        try:
            stream = self._channels.stream_of(connection) if connection.is_ready else None
            if stream is not None and stream.takes_turns:
                tasks = [task, *await line()]
                steps = self._send_turn(stream, tasks, history, namespace, timeout)
                turn = AskedTurn(self, connection, stream, steps, namespace, timeout)
        finally:
            if turn is None:
                await self._channels.give_back(connection)
        if turn is not None and turn.following is None:
            await turn.close()
            return None
        return turn

    def _send_turn(
        self,
        stream: Stream,
        tasks: Sequence[RunningTask],
        history: tuple[Event, ...],
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> Sequence[Asked]:
        is_alone = len(tasks) == 1 or any(it.task_id in self._suspects for it in tasks)
        if is_alone or namespace.name in self._paused:
            return ()
        deadline, epoch = self._clock.now() + timeout, self._epoch
        first = codec.encode_request(tasks[0], history, deadline, epoch=epoch)
        if len(first) > DESCRIBED_FROM_BYTES:
            return ()
        requests = [(codec.encode_following(it, deadline, epoch=epoch), it) for it in tasks[1:]]
        return stream.ask_turn(
            [(first, tasks[0]), *requests],
            self._loop.time() + timeout.total_seconds(),
            namespace.history_kept,
        )

    def _judged(
        self,
        answer: codec.StepOutcome | Released,
        task: RunningTask,
        namespace: Namespace,
        timeout: dt.timedelta,
        target: str | None = None,
        *,
        is_answered: bool,
    ) -> codec.StepOutcome | Released:
        if isinstance(answer, Failed):
            if answer.unreachable:
                return self._unreachable(answer, task, namespace, target)
            elapsed = self._clock.now() - task.first_started_at
            answer = failures.out_of_time(answer, timeout, elapsed)
        if is_answered:
            self.reach.took(namespace.name, task.task_id)
        else:
            self.reach.lost(namespace.name)
        return answer

    async def _exchange(
        self,
        request: bytes,
        task: RunningTask,
        history: tuple[Event, ...],
        namespace: Namespace,
        seconds: float,
    ) -> bytes | codec.StepOutcome | Released:
        deadline = self._loop.time() + seconds
        try:
            connection = await self._channels.take(namespace)
        except CredentialsError as error:
            return failures.not_connected(", ".join(namespace.processor_targets), str(error))
        if task.trace_context:
            record_server(task.trace_context, connection.target)
        try:
            if len(request) > DESCRIBED_FROM_BYTES:
                refused = await self._refusal(connection, request, task, history, deadline)
                if refused is not None:
                    return refused
            longest = namespace.step_timeout_max.total_seconds()
            answer = await self._ask_by(connection, request, task, deadline, longest)
        finally:
            await self._channels.give_back(connection)
        return answer

    async def _refusal(
        self,
        connection: Connection,
        request: bytes,
        task: RunningTask,
        history: tuple[Event, ...],
        deadline: float,
    ) -> Failed | None:
        """Return why a large step is not sent; None: its processor accepts it."""
        size = len(request)
        try:
            limit = await connection.request_bytes_max(size, timeout=deadline - self._loop.time())
        except asyncio.CancelledError:
            # As for `_call`.
            if _is_being_cancelled():
                raise
            return failures.processor_unavailable("the channel was closed before the call")
        self.sizes.note(task.key, size=size, limit=limit)
        if size <= limit:
            return None
        return failures.step_too_large(connection.target, size, limit=limit, history=history)

    async def _ask_by(
        self,
        connection: Connection,
        request: bytes,
        task: RunningTask,
        deadline: float,
        longest: float,
    ) -> bytes | codec.StepOutcome | Released:
        """Send the step on the stream of a connection, or else in a call of its own.

        Only to a target that is connected: a step that is lost then may have begun.
        """
        answer = None
        if len(request) <= STEP_BYTES_MAX and not self._suspects.pop(task.task_id, False):
            answer = await self._ask_on_stream(connection, request, task, deadline)
        if answer is not None:
            return answer
        return await self._call(connection, request, task, deadline, longest)

    async def _ask_on_stream(
        self, connection: Connection, request: bytes, task: RunningTask, deadline: float
    ) -> bytes | Failed | Released | None:
        """Return None if the processor has not seen the step."""
        for _ in range(STREAMS_MAX):
            if unsent := await self._unsent(connection, task, deadline):
                return unsent
            stream = self._channels.stream_of(connection)
            if stream is None:
                return None
            losses = connection.losses
            answer = await stream.ask(request, deadline, task)
            if answer is None:
                continue
            if isinstance(answer, Failed):
                return await self._lost(answer, stream, connection, losses, task)
            return answer
        return None

    async def _lost(
        self,
        failed: Failed,
        stream: Stream,
        connection: Connection,
        losses: int,
        task: RunningTask,
    ) -> Failed:
        """Return the failure of a step that its stream has not answered."""
        if stream.broke:
            self._suspect(task.task_id)
        if stream.was_unavailable:
            # Such as a proxy that is connected, with no processor behind it.
            lost = await connection.has_lost(losses)
            return dataclasses.replace(failed, unreachable=not lost)
        return failed

    async def _unsent(
        self, connection: Connection, task: RunningTask, deadline: float
    ) -> Failed | Released | None:
        """Wait until a target is connected; return why the step cannot be sent, None: it can."""
        if not connection.is_ready:
            seconds = max(0.0, min(CONNECT_SECONDS, deadline - self._loop.time()))
            why = await connection.connect(seconds)
            if why is not None:
                return failures.not_connected(connection.target, why)
        return Released() if task.key.namespace in self._paused else None

    async def _call(
        self,
        connection: Connection,
        request: bytes,
        task: RunningTask,
        deadline: float,
        longest: float,
    ) -> bytes | codec.StepOutcome | Released:
        """Send a step in a call of its own; `longest`: seconds that it may take if extended."""
        if unsent := await self._unsent(connection, task, deadline):
            return unsent
        stream = self._channels.stream_of(connection)
        # On a stream the processor reaches this replica also for a step in a call of its own.
        with contextlib.nullcontext(()) if stream is None else stream.guest(task) as metadata:
            return await self._answer_of(connection, request, task, deadline, longest, metadata)

    async def _answer_of(
        self,
        connection: Connection,
        request: bytes,
        task: RunningTask,
        deadline: float,
        longest: float,
        metadata: Sequence[tuple[str, str]],
    ) -> bytes | codec.StepOutcome | Released:
        seconds = deadline - self._loop.time()
        moves = self._channels.keep_deadlines
        call = connection.process(
            request,
            # gRPC's own deadline cannot be moved.
            timeout=max(seconds, longest) if moves else seconds,
            metadata=(
                *_trace_metadata(task.trace_context),
                *connection.authorization,
                *metadata,
            ),
        )
        kept = self._channels.keep_deadline(call, task, deadline) if moves else None
        losses = connection.losses
        try:
            return await call
        except aio.AioRpcError as error:
            return await _failed(connection, losses, error)
        except asyncio.CancelledError:
            # gRPC also raises this when the channel is closed during the call. Only a
            # cancellation that was requested of this asyncio task is passed on to the worker.
            if _is_being_cancelled():
                raise
            if kept is not None and kept.has_passed:
                return failures.STEP_RAN_OUT
            return failures.processor_unavailable("the channel was closed during the call")
        finally:
            if kept is not None:
                kept.stop()

    def _unreachable(
        self, failed: Failed, task: RunningTask, namespace: Namespace, target: str | None
    ) -> Failed:
        """Return the failure of a step that was not begun: for good, or with how long it waits."""
        name, task_id, patience = namespace.name, task.task_id, namespace.unreachable_patience
        if failed.reason == STILL_RUNNING:
            pause = self.reach.busy(name, task_id, failed.retry_after)
            return dataclasses.replace(failed, retry_after=pause)
        is_bound = target is not None
        if failed.sent:
            pause = self.reach.refused(
                name, task_id, failed.retry_after, is_bound=is_bound, patience=patience
            )
        else:
            pause = self.reach.missed(name, task_id, is_bound=is_bound, patience=patience)
        if patience is not None and name.partition("@")[0] not in self._paused:
            unreachable_for = self.reach.waiting_for(name)
            if unreachable_for >= patience:
                return failures.out_of_patience(target, unreachable_for, failed.message)
        return dataclasses.replace(failed, retry_after=pause)

    def _suspect(self, task_id: int) -> None:
        self._suspects[task_id] = True
        if len(self._suspects) > SUSPECTS_MAX:
            del self._suspects[next(iter(self._suspects))]


class AskedTurn:
    """The steps of a turn that were sent and whose outcomes were not taken yet, in their order."""

    def __init__(
        self,
        client: ProcessorClient,
        connection: Connection,
        stream: Stream,
        steps: Sequence[Asked],
        namespace: Namespace,
        timeout: dt.timedelta,
    ) -> None:
        self._client, self._stream = client, stream
        self._connection: Connection | None = connection
        self._losses = connection.losses
        self._steps = collections.deque(steps)
        self._namespace, self._timeout = namespace, timeout

    @property
    def following(self) -> RunningTask | None:
        """The task whose outcome is the next one."""
        return self._steps[0].task if self._steps else None

    async def is_answered(self, seconds: float) -> bool:
        """Wait so long for the next outcome; at once False if its step needs its lease."""
        step = self._steps[0]
        assert step.lease is not None, "the first step has its lease from the beginning"
        if not step.answer.done():
            futures: set[asyncio.Future[Any]] = {step.answer, step.lease.wanted}
            await asyncio.wait(
                futures, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED
            )
        return step.answer.done()

    def take_lease(self) -> None:
        """Record that the next step has its lease."""
        lease = self._steps[0].lease
        if lease is not None and not lease.taken.done():
            lease.taken.set_result(None)

    async def outcome(self) -> codec.StepOutcome | Released | None:
        """Return the next outcome, as `ProcessorClient.ask`; None: the step was not begun.

        Cancelled, it leaves the step, which `close` gives up.
        """
        step, client = self._steps[0], self._client
        answer = await asyncio.shield(step.answer)
        self._steps.popleft()
        if answer is None or step.task is None or self._connection is None:
            return None
        if isinstance(answer, bytes):
            outcome = _decoded(answer, step.task, self._namespace)
            if isinstance(outcome, Failed) and outcome.unreachable and outcome.reason == TURN_ENDED:
                return None
        else:
            outcome = await client._lost(  # noqa: SLF001  a part of it
                answer, self._stream, self._connection, self._losses, step.task
            )
        return client._judged(  # noqa: SLF001  a part of it
            outcome, step.task, self._namespace, self._timeout,
            is_answered=isinstance(answer, bytes),
        )  # fmt: skip

    async def close(self) -> None:
        """Give up the steps whose outcomes were not taken. Safe to repeat."""
        while self._steps:
            self._stream.give_up(self._steps.popleft())
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._client._channels.give_back(connection)  # noqa: SLF001  the same


def _decoded(packed: bytes, task: RunningTask, namespace: Namespace) -> codec.StepOutcome:
    return codec.decode_response(
        packed,
        task_type=task.task_type,
        namespace=namespace.name,
        payload_bytes_max=namespace.payload_bytes_max,
    )


def _target_of(task: RunningTask) -> str | None:
    part = task.process.part
    return None if part is None else part.options.target


def _bound(namespace: Namespace, target: str) -> Namespace:
    """Return a namespace with one of its targets, under a name that no namespace has."""
    name = f"{namespace.name}@{target}"
    return dataclasses.replace(namespace, name=name, processor_targets=(target,))


async def _failed(connection: Connection, losses: int, error: aio.AioRpcError) -> Failed:
    failed = failures.failure_of(error)
    if failed.code == code_pb2.UNAVAILABLE:
        connection.note_unavailable()
    if error.code() is grpc.StatusCode.UNAVAILABLE and await connection.has_lost(losses):
        # It was connected when the step was sent: the step may be what crashed it.
        return dataclasses.replace(failed, unreachable=False)
    return failed


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def _trace_metadata(context: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (key, context[key])
        for key in _TRACE_KEYS
        if key in context and _TRACE_VALUE.fullmatch(context[key])
    )
