"""A processor: the user's handlers, one for each task type, and their answers."""

import asyncio
import contextvars
import dataclasses
import datetime as dt
import functools
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeAlias, TypeVar, overload

import grpc
from typing_extensions import TypeForm

from progressor import errors
from progressor.sdk.codec.codecs import JSON, Codec, KeyNotFoundError, Payload
from progressor.sdk.processor import server
from progressor.sdk.processor.blocking import BlockingWarning, watched
from progressor.sdk.processor.checks import (
    check_handler,
    check_source,
    check_state,
    name_of_handler,
)
from progressor.sdk.processor.links import EngineAddress, StepLink
from progressor.sdk.processor.step import State, Step, check_timer_name
from progressor.sdk.processor.verdicts import (
    Reject,
    Verdict,
    failure,
    text_of_error,
    text_of_failure,
    text_of_step,
)
from progressor.sdk.processor.versions import (
    STATE_TOO_NEW,
    StateUpgradeError,
    StateVersions,
    Upgrade,
)
from progressor.sdk.transport.propagation import under
from progressor.sdk.transport.trust import ServerTls, Trust
from progressor.sdk.values.processes import TaskType
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire.fields import id_faults

Returned = TypeVar("Returned")
Handler: TypeAlias = Callable[[Step[State]], Returned]
Registrar: TypeAlias = Callable[[Handler[State, Any]], Handler[State, Any]]
Upgrading = TypeVar("Upgrading", bound=Upgrade)

STILL_RUNNING = "STILL_RUNNING"
"""The reason of a refused attempt: an earlier attempt of its process is still running."""

_RELEASE_BYTES_MAX = 64

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Handler:
    """A function of the user's; a plain one may block, so it runs in a thread."""

    function: Callable[[Any], Payload]
    is_async: bool
    name: str
    blocking: BlockingWarning


@dataclasses.dataclass(slots=True)
class _Attempt:
    """A running attempt; ``thread`` is that of a plain handler, which may outlast its step."""

    request: pb.ProcessRequest
    threads: Executor
    link: StepLink | None
    thread: Future[Payload] | None = None

    def final(self, answer: pb.ProcessResponse) -> pb.ProcessResponse:
        """Return the answer; a failure that must not be retried goes before any other."""
        verdict = None if self.link is None else self.link.verdict
        return answer if verdict is None or not answer.HasField("failure") else verdict.to_wire()


def _checked_release(release: str, owner: str) -> str:
    if not isinstance(release, str):
        message = f"{owner}: release must be a str, got {release!r}"
        raise TypeError(message)
    if (size := len(release.encode())) > _RELEASE_BYTES_MAX:
        message = f"{owner}: release must be at most {_RELEASE_BYTES_MAX} bytes, got {size}"
        raise ValueError(message)
    return release


class Processor(Generic[State]):
    """Handlers that carry out the steps of the processes of a namespace.

    A handler takes a `Step` and returns the response; None: no response. It is ``async def``, or a
    plain function, which runs in a thread and may block; if it returns a coroutine, that is
    awaited. A handler raises `Reject`, `Fail` or `Retry` to end the step in another way. Any other
    exception is logged, and the step is tried again by the namespace's retry policy; when the
    attempts are used up, the process breaks.

    When the engine gives a step up, an async handler is cancelled. A plain handler runs to its end,
    and its answer is discarded. Until then, other attempts of its process are refused with the
    reason STILL_RUNNING: another attempt of a task that ran past its deadline with ABORTED, which
    the engine retries by the namespace's policy; any other with UNAVAILABLE, which costs no attempt
    and breaks nothing. ``progressor why`` names the task that is still running.
    """

    @overload
    def __init__(
        self: "Processor[Any]",
        name: str,
        *,
        codec: Codec = JSON,
        version: int | None = None,
        release: str = "",
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        state: TypeForm[State],
        codec: Codec = JSON,
        version: int | None = None,
        release: str = "",
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        state: Payload = Any,
        codec: Codec = JSON,
        version: int | None = None,
        release: str = "",
    ) -> None:
        """Create a processor without handlers.

        Args:
            name: Its namespace. If several processors are served together, each gets the steps of
                its namespace; a processor that is served alone gets those of every namespace.
            state: The type of `Step.state`: a dataclass, a msgspec.Struct, ``list[str]`` ...
            codec: For all payloads.
            version: The version of `state`, from 1, saved with each state. Increase it when the
                type can no longer read the states of the previous version, and add an `upgrade`.
                None: the states are of version 1, and no version is saved.
            release: Which release of your code this is, such as "1.4.2" or a commit: at most 64
                bytes. `progressor failures` groups what breaks processes by it.

        Raises:
            TypeError: The codec cannot write and read a `state`, `version` is not an integer, or
                `release` is not a string.
            ValueError: `version` is less than 1, or `release` is longer than 64 bytes.
        """
        owner = f"processor {name!r}"
        check_state(state, codec, owner)
        self._versions: StateVersions | None = None
        if version is not None:
            self._versions = StateVersions(owner, version, state_type=state, codec=codec)
        self._version = self._refused_version = version or 1
        self._missing_key = ""
        self._release = _checked_release(release, owner)
        self._name = name
        self._state_type = state
        self._codec = codec
        self._handlers: dict[int, _Handler] = {}
        # By the names of timers; of all others there is one among the handlers.
        self._timeouts: dict[str, _Handler] = {}
        # With a name; the one without is among the others.
        self._replies: dict[str, _Handler] = {}
        # The running attempts, by namespace, process and scope. A thread removes its own.
        self._attempts: dict[tuple[str, str, object], _Attempt] = {}
        self._is_checked = False

    @property
    def name(self) -> str:
        """The namespace of this processor."""
        return self._name

    @property
    def task_types(self) -> tuple[TaskType, ...]:
        """The task types that have a handler."""
        named = {TaskType.TIMEOUT.number} if self._timeouts else set[int]()
        named |= {TaskType.REPLY.number} if self._replies else set()
        return tuple(TaskType.from_number(it) for it in sorted(self._handlers.keys() | named))

    @property
    def codec(self) -> Codec:
        """The codec of its payloads."""
        return self._codec

    @property
    def state_type(self) -> Payload:
        """The type of `Step.state`."""
        return self._state_type

    @property
    def version(self) -> int | None:
        """The version of the state; None: none, as version 1."""
        return None if self._versions is None else self._versions.version

    def init(self, handler: Handler[State, Returned]) -> Handler[State, Returned]:
        """Register the handler of the first step of a process."""
        return self._register(TaskType.INIT, handler)

    def call(self, handler: Handler[State, Returned]) -> Handler[State, Returned]:
        """Register the handler of calls."""
        return self._register(TaskType.CALL, handler)

    def notify(self, handler: Handler[State, Returned]) -> Handler[State, Returned]:
        """Register the handler of notifications, which are calls without an answer."""
        return self._register(TaskType.NOTIFY, handler)

    def repair(self, handler: Handler[State, Returned]) -> Handler[State, Returned]:
        """Register the handler of repairs of a broken process."""
        return self._register(TaskType.REPAIR, handler)

    @overload
    def timeout(self, handler: Handler[State, Returned], /) -> Handler[State, Returned]: ...

    @overload
    def timeout(
        self, name: str, /
    ) -> Callable[[Handler[State, Returned]], Handler[State, Returned]]: ...

    def timeout(self, handler_or_name: Any, /) -> Any:
        """Register the handler of timers, or, as in ``@orders.timeout("reminder")``, of one timer.

        A timer without a handler of its own runs the handler of timers.
        """
        if not isinstance(handler_or_name, str):
            return self._register(TaskType.TIMEOUT, handler_or_name)
        check_timer_name(handler_or_name)
        return functools.partial(self._register, TaskType.TIMEOUT, timer_name=handler_or_name)

    def join(self, handler: Handler[State, Returned]) -> Handler[State, Returned]:
        """Register the handler that runs when all nodes of a job have ended.

        It reads `Step.nodes` and decides: `Step.complete` ends the job as done, `Fail` as failed,
        and `Step.start_nodes` continues it with more nodes.
        """
        return self._register(TaskType.JOIN, handler)

    def upgrade(self, from_version: int) -> Callable[[Upgrading], Upgrading]:
        """Register the function that upgrades a state of `from_version` to the next version.

        It takes the old state, of the type with which its parameter is annotated, or else as plain
        JSON, and returns the new one. Reading `Step.state` calls it for an older state, and then
        the upgrades of the versions after it. It may run several times for one state, so it must
        have no side effects. If it raises, the process breaks with the reason STATE_UPGRADE_FAILED
        and keeps its old state; retry it with a processor that has the fix.

        Raises:
            ValueError: The processor has no version, or `from_version` is not an older one, or has
                an upgrade already.
            TypeError: `from_version` is not an integer, the function is not a plain function of one
                argument, or the codec cannot read the type of the argument.
        """
        versions = self._versions
        if versions is None:
            message = f"processor {self._name!r} has no version: create it with `version`"
            raise ValueError(message)
        versions.expect_older(from_version)

        def register(function: Upgrading) -> Upgrading:
            versions.add(from_version, function)
            self._is_checked = False
            return function

        return register

    def upgraded(self, state: Payload, version: int) -> State | None:
        """Return a stored state of any version as this processor's steps would read it.

        For clients and tests: ``orders.upgraded(process.state, process.state_version)``.

        Args:
            state: As plain JSON, or of its old type; the codec encodes it.
            version: `Process.state_version`; 0: none, as version 1.

        Raises:
            Fail: An upgrade failed; the reason is STATE_UPGRADE_FAILED.
            ValueError: The state is of a newer version, or not of the type of its version, or
                `version` is less than 0.
        """
        return self.decode_state(self._codec.encode(state), version)

    def decode_state(self, data: bytes, version: int) -> State | None:
        """Return an encoded state of this processor's version or an older one, as `upgraded`."""
        if version > self._version:
            raise ValueError(self._newer(version))
        if version < 0:
            message = f"the version of a state must be at least 0, got {version}"
            raise ValueError(message)
        state: State | None
        if self._versions is None:
            state = self._codec.decode(data, self._state_type)
        else:
            state = self._versions.read(data, version)
        return state

    @overload
    def reply(self, name: Handler[State, Returned], /) -> Handler[State, Returned]: ...

    @overload
    def reply(self, name: str = "", /) -> Registrar[State]: ...

    def reply(
        self, name: str | Handler[State, Returned] = "", /
    ) -> Handler[State, Returned] | Registrar[State]:
        """Register the handler of the answers to messages that name it as their `reply`.

        ``@orders.reply("picked")`` handles the answers to messages with ``reply="picked"``,
        ``@orders.reply`` those whose name has no handler of its own. The handler finds the answer
        in `Step.reply`.

        A step that sends a message whose reply has no handler raises ValueError. If a handler is
        removed while its replies are on their way, they break their processes; retry these with a
        processor that has the handler again.

        Raises:
            ValueError: The name is longer than 256 bytes or has a control character, or it has a
                handler already.
        """
        if not isinstance(name, str):
            return self._register(TaskType.REPLY, name)
        for fault in id_faults(name or "any"):
            message = f"the name of a reply {fault}: {name[:256]!r}"
            raise ValueError(message)

        def register(handler: Handler[State, Returned]) -> Handler[State, Returned]:
            return self._register(TaskType.REPLY, handler, reply=name)

        return register

    def check(self) -> None:
        """Check that the processor can carry out steps; servers call this at their start.

        Raises:
            ValueError: It has no handlers, or no upgrade from an older version of its state.
            TypeError: A handler lacks an `await`, or requests a type that the codec cannot read.
        """
        if self._is_checked:
            return
        handlers = [
            *self._handlers.values(),
            *self._timeouts.values(),
            *self._replies.values(),
        ]
        if not handlers:
            message = (
                f"processor {self._name!r} has no handlers: add one for each task type, "
                "with @processor.init, @processor.call and so on"
            )
            raise ValueError(message)
        for handler in handlers:
            check_source(handler.function, self._codec, handler.name)
        self.check_upgrades()
        self._is_checked = True

    def check_upgrades(self) -> None:
        """Check that the state of each older version has an upgrade; `check` does this, too.

        Raises:
            ValueError: An upgrade is missing; the message names it.
        """
        if self._versions is not None:
            self._versions.check()

    async def answer(
        self, request: pb.ProcessRequest, threads: Executor, link: StepLink | None = None
    ) -> pb.ProcessResponse:
        """Run the handler of a task, and return its answer; plain handlers run in `threads`.

        By `link` the handler reaches the engine. The span of the step is current while the handler
        runs. This is the whole processor without a socket, for servers and tests.
        """
        process = request.process
        if process.state_version > self._version:
            return self._too_new(request)
        handler = self._handlers.get(request.task.type)
        if self._timeouts and request.task.type == TaskType.TIMEOUT.number:
            handler = self._timeouts.get(request.task.timer_name, handler)
        if request.task.type == TaskType.REPLY.number:
            handler = self._replies.get(request.task.reply.name, handler)
        if handler is None:
            return self._unimplemented(request)
        key = (process.namespace, process.process_id, None if link is None else link.scope)
        attempt = _Attempt(request, threads, link)
        earlier = self._attempts.setdefault(key, attempt)
        if earlier is not attempt:
            return _still_running(request, earlier.request)
        try:
            with under(request.task.trace_context):
                answer = attempt.final(await self._answered(handler, attempt))
                if self._release and answer.HasField("failure"):
                    answer.failure.release = self._release
                return answer
        finally:
            if attempt.thread is None:
                del self._attempts[key]
            else:
                # A thread cannot be cancelled: it may outlast its step.
                attempt.thread.add_done_callback(lambda _: self._attempts.pop(key))

    async def _answered(self, handler: _Handler, attempt: _Attempt) -> pb.ProcessResponse:
        request = attempt.request
        response = pb.ProcessResponse()
        step: Step[State] = Step(
            request,
            response,
            codec=self._codec,
            state_type=self._state_type,
            versions=self._versions,
            link=attempt.link,
            expect_reply=self._expect_reply,
        )
        try:
            value = await _run(handler, step, attempt)
            response.response = self._codec.encode(value)
        except StateUpgradeError as error:
            # A bug of the user's code, which the log shows with its traceback.
            self._log(request, "upgrade of the state raised", error.__cause__ or error)
            return error.to_wire()
        except Verdict as verdict:
            return verdict.to_wire()
        except asyncio.CancelledError:
            if attempt.link is not None:
                # A plain handler runs on, and must learn of it.
                attempt.link.is_lost = True
            raise
        except KeyNotFoundError as error:
            return self._without_key(request, error)
        except errors.LeaseLostError as error:
            return failure(grpc.StatusCode.ABORTED, str(error), error.reason)
        except Exception as error:  # noqa: BLE001  # an exception of the user's code ends this step alone
            return self._failed(request, error)
        return response

    def serve(
        self,
        bind: str = server.BIND_DEFAULT,
        *,
        limits: server.Limits = server.LIMITS_DEFAULT,
        streaming: bool = True,
        engine: str | EngineAddress | None = None,
        tls: ServerTls | None = None,
        trust: Trust | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, drain and return, as `progressor.sdk.serve`."""
        server.serve(
            self,
            bind=bind, limits=limits, streaming=streaming, engine=engine, tls=tls, trust=trust,
        )  # fmt: skip

    def running(
        self,
        bind: str = server.BIND_DEFAULT,
        *,
        limits: server.Limits = server.LIMITS_DEFAULT,
        streaming: bool = True,
        engine: str | EngineAddress | None = None,
        tls: ServerTls | None = None,
        trust: Trust | None = None,
    ) -> AbstractAsyncContextManager[str]:
        """Serve inside an ``async with``, which returns the address; `progressor.sdk.running`."""
        return server.running(
            self,
            bind=bind, limits=limits, streaming=streaming, engine=engine, tls=tls, trust=trust,
        )  # fmt: skip

    def _register(
        self,
        task_type: TaskType,
        handler: Handler[State, Returned],
        *,
        timer_name: str = "",
        reply: str = "",
    ) -> Handler[State, Returned]:
        named, key = (self._replies, reply) if reply else (self._timeouts, timer_name)
        if key in named if key else task_type.number in self._handlers:
            tasks = f"{task_type} tasks"
            if key:
                tasks = f"the reply {key!r}" if reply else f"timer {key!r}"
            message = f"processor {self._name!r} already has a handler for {tasks}"
            raise ValueError(message)
        name = f"processor {self._name!r}: {task_type} handler {name_of_handler(handler)}"
        check_handler(handler, self._codec, name)
        made = _Handler(
            function=handler, is_async=_is_async(handler), name=name, blocking=BlockingWarning(name)
        )
        if key:
            named[key] = made
        else:
            self._handlers[task_type.number] = made
        self._is_checked = False
        return handler

    def _expect_reply(self, name: str) -> None:
        """Raise ValueError if a reply of this name has no handler."""
        if name in self._replies or TaskType.REPLY.number in self._handlers:
            return
        own = f'@processor.reply("{name}"), or ' if name else ""
        message = (
            f"processor {self._name!r} has no handler for the reply {name!r}: "
            f"add one with {own}@processor.reply for all replies without one"
        )
        raise ValueError(message)

    def _unimplemented(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        task_type = TaskType.from_number(request.task.type)
        message = (
            f"processor {self._name!r} has no {task_type} handler: "
            f"add one with @processor.{task_type}"
        )
        if timer_name := request.task.timer_name:
            message += f', or @processor.timeout("{timer_name}") for this timer'
        if task_type in {TaskType.TIMEOUT, TaskType.JOIN, TaskType.REPLY}:
            # Not UNIMPLEMENTED, from which the engine infers that the target is another processor.
            return failure(grpc.StatusCode.FAILED_PRECONDITION, message, "NO_HANDLER")
        # A request without a handler is the caller's mistake and must not break the process.
        unknown = Reject(message, code=grpc.StatusCode.UNIMPLEMENTED, reason="NO_HANDLER")
        return unknown.to_wire()

    def _newer(self, version: int) -> str:
        own = f"version {self._version} of processor {self._name!r}"
        return f"the state has version {version}, newer than {own}"

    def _too_new(self, request: pb.ProcessRequest) -> pb.ProcessResponse:
        """Refuse a step whose state is of a newer version; the engine retries it by policy."""
        version = request.process.state_version
        message = self._newer(version)
        if version > self._refused_version:
            # Once for each version: during a rollout many steps are refused.
            self._refused_version = version
            _log.warning("step refused: %s (%s)", message, text_of_step(request))
        return failure(grpc.StatusCode.ABORTED, message, STATE_TOO_NEW)

    def _without_key(
        self, request: pb.ProcessRequest, error: KeyNotFoundError
    ) -> pb.ProcessResponse:
        """Refuse a step until the key of a payload is here, as if this processor were not."""
        if error.key_id != self._missing_key:
            # Not for each of many steps.
            self._missing_key = error.key_id
            _log.warning("step refused: %s (%s)", error, text_of_step(request))
        return failure(grpc.StatusCode.UNAVAILABLE, str(error), error.reason)

    def _failed(self, request: pb.ProcessRequest, error: Exception) -> pb.ProcessResponse:
        self._log(request, "handler raised", error)
        return failure(grpc.StatusCode.UNKNOWN, text_of_failure(error), type(error).__name__)

    def _log(self, request: pb.ProcessRequest, what: str, error: BaseException) -> None:
        _log.error(
            "%s %s (%s)",
            what,
            text_of_error(error),
            text_of_step(request),
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


def _still_running(request: pb.ProcessRequest, earlier: pb.ProcessRequest) -> pb.ProcessResponse:
    """Refuse an attempt of a process in which an earlier one is still running.

    It counts as an attempt only where the task itself is at fault: its earlier attempt ran past its
    deadline. It does not count for a task behind a cancelled one, nor where the earlier attempt has
    time left, because its replica was lost.
    """
    task = earlier.task
    is_other = task.task_id != request.task.task_id
    message = f"attempt {task.attempt} of task {task.task_id} is still running"
    if is_other:
        message = (
            f"task {task.task_id}, which was cancelled or given up, is still running, "
            f"in attempt {task.attempt}"
        )
    _log.warning("attempt refused: %s (%s)", message, text_of_step(request))
    has_time_left = dt.datetime.now(dt.UTC) < earlier.deadline.ToDatetime(dt.UTC)
    is_blameless = is_other or has_time_left
    code = grpc.StatusCode.UNAVAILABLE if is_blameless else grpc.StatusCode.ABORTED
    return failure(code, message, STILL_RUNNING)


def _ended(function: Callable[[Any], Payload], step: Step[Any]) -> Payload:
    """Call a plain handler; a future cannot hold StopIteration, its waiter would hang."""
    try:
        return function(step)
    except StopIteration as error:
        message = "the handler raised StopIteration, as next() does at the end of an iterator"
        raise RuntimeError(message) from error


async def _run(handler: _Handler, step: Step[Any], attempt: _Attempt) -> Payload:
    """Return the result of a handler, awaited if it is a coroutine."""
    if handler.is_async:
        value = await watched(handler.function(step), handler.blocking)
    else:
        # A plain handler has the same context variables, such as the current span, as a coroutine.
        run = contextvars.copy_context().run
        attempt.thread = attempt.threads.submit(run, _ended, handler.function, step)
        value = await asyncio.wrap_future(attempt.thread)
    return await watched(value, handler.blocking) if inspect.iscoroutine(value) else value


def _is_async(handler: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004  # an instance whose call is async
    )
