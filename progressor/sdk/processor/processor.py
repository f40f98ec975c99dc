"""A processor: the user's handlers, one per type of task, and the answers they make."""

import asyncio
import contextvars
import dataclasses
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, overload

import grpc
from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import JSON, Codec, Payload
from progressor.sdk.processor import server, words
from progressor.sdk.processor.blocking import Blocking, watched
from progressor.sdk.processor.checks import (
    check_handler,
    check_source,
    check_state,
    name_of_handler,
)
from progressor.sdk.processor.step import State, Step
from progressor.sdk.processor.verdicts import Reject, Verdict, failure
from progressor.sdk.transport.propagation import under
from progressor.sdk.values.processes import TaskType
from progressor.v1 import processor_service_pb2 as pb

Returned = TypeVar("Returned")

STILL_RUNNING = "STILL_RUNNING"
"""The reason of a refused attempt: an earlier attempt on its process is still running."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Handler:
    """A function of the user's; a plain one may block, so it gets a thread."""

    function: Callable[[Any], Payload]
    is_async: bool
    name: str
    blocking: Blocking


class _Attempt:
    """One running attempt; ``thread``: that of a plain handler, which may outlast its step."""

    __slots__ = ("_threads", "request", "thread")

    def __init__(self, request: pb.ProcessRequest, threads: Executor) -> None:
        self.request, self._threads = request, threads
        self.thread: Future[Any] | None = None

    async def run(self, function: Callable[..., Payload], *args: object) -> Payload:
        """Return what a plain handler does in a thread."""
        self.thread = self._threads.submit(_ended, function, *args)
        return await asyncio.wrap_future(self.thread)


class Processor(Generic[State]):
    """Answers the steps of the processes of a namespace by functions of the user's.

    A handler takes a `Step` and returns the response, None for none. It is ``async def``, or a
    plain function, which runs in a thread and may block. A coroutine that it returns is awaited. It
    raises `Reject`, `Fail` or `Retry`
    to end the step otherwise; any other exception breaks the process, and is logged.

    A step that the engine gave up is cancelled, if its handler is async; a plain one runs on to
    its end, which nobody hears. Until then, other attempts on its process are answered ABORTED with
    the reason STILL_RUNNING, and asked again by the namespace's retry policy.
    """

    @overload
    def __init__(self: "Processor[Any]", name: str, *, codec: Codec = JSON) -> None: ...

    @overload
    def __init__(self, name: str, *, state: TypeForm[State], codec: Codec = JSON) -> None: ...

    def __init__(self, name: str, *, state: Payload = Any, codec: Codec = JSON) -> None:
        """Take no handler yet.

        Args:
            name: Its namespace, by which steps are routed where several processors are served
                together; a processor served alone answers for whatever namespace asks it.
            state: The type that `Step.state` is decoded to: a dataclass, a msgspec.Struct ...
            codec: For all payloads.

        Raises:
            TypeError: The codec can never write and read a `state`.
        """
        check_state(state, codec, f"processor {name!r}")
        self._name = name
        self._state_type = state
        self._codec = codec
        self._handlers: dict[int, _Handler] = {}
        # The attempts in hand, by namespace and process. Threads take theirs out themselves.
        self._attempts: dict[tuple[str, str], _Attempt] = {}
        self._is_checked = False

    @property
    def name(self) -> str:
        """The namespace that this processor answers for."""
        return self._name

    @property
    def task_types(self) -> tuple[TaskType, ...]:
        """The types of task that it has a handler for."""
        return tuple(TaskType.from_number(it) for it in sorted(self._handlers))

    @property
    def codec(self) -> Codec:
        """What its payloads are encoded by."""
        return self._codec

    @property
    def state_type(self) -> Payload:
        """What `Step.state` is decoded to."""
        return self._state_type

    def init(self, handler: Callable[[Step[State]], Returned]) -> Callable[[Step[State]], Returned]:
        """Take `handler` for the first step of each process."""
        return self._register(TaskType.INIT, handler)

    def call(self, handler: Callable[[Step[State]], Returned]) -> Callable[[Step[State]], Returned]:
        """Take `handler` for requests with an answer."""
        return self._register(TaskType.CALL, handler)

    def notify(
        self, handler: Callable[[Step[State]], Returned]
    ) -> Callable[[Step[State]], Returned]:
        """Take `handler` for requests without an answer."""
        return self._register(TaskType.NOTIFY, handler)

    def repair(
        self, handler: Callable[[Step[State]], Returned]
    ) -> Callable[[Step[State]], Returned]:
        """Take `handler` for attempts to bring a broken process back."""
        return self._register(TaskType.REPAIR, handler)

    def timeout(
        self, handler: Callable[[Step[State]], Returned]
    ) -> Callable[[Step[State]], Returned]:
        """Take `handler` for timers that are due."""
        return self._register(TaskType.TIMEOUT, handler)

    def join(self, handler: Callable[[Step[State]], Returned]) -> Callable[[Step[State]], Returned]:
        """Take `handler` for the end of all nodes that `Step.start_nodes` has started.

        It reads `Step.nodes` and decides: `Step.complete` ends the job as done, `Fail` as failed;
        `Step.start_nodes` goes on with more.
        """
        return self._register(TaskType.JOIN, handler)

    def check(self) -> None:
        """Refuse a processor that could not answer its first step; servers call this.

        Raises:
            ValueError: It has no handlers.
            TypeError: A handler drops a coroutine that it must await, or asks for a type that can
                never be read.
        """
        if self._is_checked:
            return
        if not self._handlers:
            message = (
                f"processor {self._name!r} has no handlers: add one for each type of task that it "
                "must answer, with @processor.init, @processor.call and so on"
            )
            raise ValueError(message)
        for handler in self._handlers.values():
            check_source(handler.function, self._codec, handler.name)
        self._is_checked = True

    async def answer(self, request: pb.ProcessRequest, threads: Executor) -> pb.ProcessResponse:
        """Return what the handler of the task decides; plain handlers run in `threads`.

        It runs under the span of the step: its own spans are children of that.
        This is the whole processor without a socket: handy in tests.
        """
        handler = self._handlers.get(request.task.type)
        if handler is None:
            return self._unimplemented(request)
        process = request.process
        key = (process.namespace, process.process_id)
        attempt = _Attempt(request, threads)
        earlier = self._attempts.setdefault(key, attempt)
        if earlier is not attempt:
            return _still_running(request, earlier.request.task)
        try:
            with under(request.task.trace_context):
                return await self._answered(handler, attempt)
        finally:
            if attempt.thread is None:
                del self._attempts[key]
            else:
                # A thread cannot be cancelled: it may outlast the step by which it was begun.
                attempt.thread.add_done_callback(lambda _: self._attempts.pop(key))

    async def _answered(self, handler: _Handler, attempt: _Attempt) -> pb.ProcessResponse:
        request = attempt.request
        response = pb.ProcessResponse()
        step: Step[State] = Step(request, response, codec=self._codec, state_type=self._state_type)
        try:
            value = await _run(handler, step, attempt)
            response.response = self._codec.encode(value)
        except Verdict as verdict:
            return verdict.to_wire()
        except Exception as error:  # noqa: BLE001  # whatever the user's code raises is this step's end, and no neighbour's
            return self._failed(request, error)
        return response

    def serve(
        self,
        bind: str = server.BIND_DEFAULT,
        *,
        limits: server.Limits = server.LIMITS_DEFAULT,
        streaming: bool = True,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then end the steps in hand and return."""
        server.serve(self, bind=bind, limits=limits, streaming=streaming)

    async def serve_async(
        self,
        bind: str = server.BIND_DEFAULT,
        *,
        limits: server.Limits = server.LIMITS_DEFAULT,
        streaming: bool = True,
    ) -> None:
        """Serve in the running event loop until cancelled, then end the steps in hand."""
        await server.serve_async(self, bind=bind, limits=limits, streaming=streaming)

    def running(
        self,
        bind: str = server.BIND_DEFAULT,
        *,
        limits: server.Limits = server.LIMITS_DEFAULT,
        streaming: bool = True,
    ) -> AbstractAsyncContextManager[str]:
        """Serve inside an ``async with``, which gives the bound address (port 0: any free one)."""
        return server.running(self, bind=bind, limits=limits, streaming=streaming)

    def _register(
        self, task_type: TaskType, handler: Callable[[Step[State]], Returned]
    ) -> Callable[[Step[State]], Returned]:
        if task_type.number in self._handlers:
            message = f"processor {self._name!r} has its {task_type} handler already"
            raise ValueError(message)
        name = f"processor {self._name!r}: {task_type} handler {name_of_handler(handler)}"
        check_handler(handler, self._codec, name)
        self._handlers[task_type.number] = _Handler(
            function=handler, is_async=_is_async(handler), name=name, blocking=Blocking(name)
        )
        self._is_checked = False
        return handler

    def _unimplemented(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        task_type = TaskType.from_number(request.task.type)
        message = (
            f"processor {self._name!r} has no {task_type} handler: "
            f"add one with @processor.{task_type}"
        )
        if task_type in {TaskType.TIMEOUT, TaskType.JOIN}:
            # Not UNIMPLEMENTED, from which the engine infers that the target is another processor.
            return failure(grpc.StatusCode.FAILED_PRECONDITION, message, "NO_HANDLER")
        # A request without a handler is the caller's mistake: it must not break a process.
        unknown = Reject(message, code=grpc.StatusCode.UNIMPLEMENTED, reason="NO_HANDLER")
        return unknown.to_wire()

    def _failed(self, request: pb.ProcessRequest, error: Exception) -> pb.ProcessResponse:
        _log.error(
            "handler raised %s (%s)",
            words.of_error(error),
            words.of_step(request),
            exc_info=error,
            extra={
                "processor": self._name,
                "namespace": request.process.namespace,
                "process_id": request.process.process_id,
                "task_id": request.task.task_id,
                "task_type": str(TaskType.from_number(request.task.type)),
                "attempt": request.task.attempt,
            },
        )
        return failure(grpc.StatusCode.UNKNOWN, words.of_failure(error), type(error).__name__)


def _still_running(request: pb.ProcessRequest, earlier: pb.ProcessorTask) -> pb.ProcessResponse:
    """Return the answer to an attempt on a process whose earlier attempt is still running."""
    words_of_it = f"attempt {earlier.attempt} of task {earlier.task_id} is still running"
    _log.warning("not begun: %s (%s)", words_of_it, words.of_step(request))
    return failure(grpc.StatusCode.ABORTED, words_of_it, STILL_RUNNING)


def _ended(function: Callable[..., Payload], *args: object) -> Payload:
    """Return what a function does. No future takes a StopIteration, its waiter would hang."""
    try:
        return function(*args)
    except StopIteration as error:
        message = "the handler raised StopIteration, as next() does where nothing is left"
        raise RuntimeError(message) from error


async def _run(handler: _Handler, step: Step[Any], attempt: _Attempt) -> Payload:
    """Return the handler's result; await a coroutine that a plain handler returns."""
    if handler.is_async:
        value = await watched(handler.function(step), handler.blocking)
        return await watched(value, handler.blocking) if inspect.iscoroutine(value) else value
    # The handler sees the context variables (the current span among them) that a coroutine would.
    context = contextvars.copy_context()
    value = await attempt.run(context.run, handler.function, step)
    return await watched(value, handler.blocking) if inspect.iscoroutine(value) else value


def _is_async(handler: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  # an instance whose call is async
    )
