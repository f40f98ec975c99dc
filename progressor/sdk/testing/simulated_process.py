"""A process in memory: the engine's rules of steps, retries and timers, on messages.

A step is saved as a whole or not at all; `progressor.domain.processes.settlement` decides what a
failure or a rejection means. The clock moves by the pauses between attempts, without jitter. There
is one caller, so no task waits for another.
"""

import dataclasses
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import grpc

from progressor.domain.processes import task as domain
from progressor.domain.processes.intent import Failed, Rejected
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.settlement import Break, Fail, Remove, Retry, settle
from progressor.sdk.codec.codecs import Payload
from progressor.sdk.codec.wire import duration_from_wire, instant_from_wire, instant_to_wire
from progressor.sdk.processor.processor import Processor
from progressor.sdk.processor.verdicts import status_number
from progressor.sdk.values.jobs import NodeOutcome, outcome_to_wire
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.processes import TaskError, TaskType
from progressor.v1 import nodes_pb2, types_pb2
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire.processes import TASK_TYPE_TO_WIRE

_CODES = {status_number(it): it for it in grpc.StatusCode}
_RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    }
)


@dataclasses.dataclass(slots=True, kw_only=True)
class Task:
    """A task, and, once it has ended, how; `attempt` counts up."""

    key: ProcessKey
    task_id: int
    task_type: domain.TaskType
    args: bytes
    scheduled_at: dt.datetime
    first_started_at: dt.datetime
    context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes: Sequence[NodeOutcome] = ()
    history_range: types_pb2.HistoryRange | None = None
    attempt: int = 1
    broken_by: int | None = None
    response: bytes = b""
    error: domain.TaskError | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """A task of a rehearsal that has ended, with a response or an error.

    ``rejected``: the error is a rejection by the handler, not a failure.
    """

    task_id: int
    type: TaskType
    ended_at: dt.datetime
    attempt_count: int
    response: Payload
    error: TaskError | None
    rejected: bool


Observer = Callable[[nodes_pb2.StartNodes | None], Awaitable[None]]
"""Called after each change of a process, with the nodes that its step starts; None: none."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Timer:
    """The timer as it was set, and its attempts."""

    message: types_pb2.SetTimer
    due_at: dt.datetime
    task_id: int
    attempt: int = 1
    first_at: dt.datetime | None = None

    def again(self, not_before: dt.datetime) -> "Timer":
        """Return a new timer, due at the same instant, or at `not_before` if that is later."""
        due_at = max(self.due_at, not_before)
        return Timer(message=self.message, due_at=due_at, task_id=self.task_id)


class _InlineExecutor(Executor):
    """Runs plain handlers in the thread of the test."""

    def submit(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,  # noqa: ANN401  # as of an Executor
        **kwargs: Any,  # noqa: ANN401  # as of an Executor
    ) -> "Future[Any]":
        """Run a function, and return a future with its result; raise what the function raises."""
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class SimulatedProcess:
    """A process, or none, with its history, its timer and the clock."""

    def __init__(
        self,
        processor: Processor[Any],
        *,
        config: NamespaceConfig,
        now: dt.datetime,
        observer: Observer | None,
    ) -> None:
        self._processor = processor
        self._config = config
        self._observer = observer
        self._namespace = Namespace(
            name=config.name,
            processor_targets=(),
            retry_policy=config.retry_policy,
            retry_policies={
                domain.TaskType(it): policy for it, policy in config.retry_policies.items()
            },
            exhausted_call_fails_alone=config.exhausted_call_fails_alone,
        )
        self._last_task_id = 0
        self.now = now
        self.process: types_pb2.Process | None = None
        self.result = b""
        self.history: list[types_pb2.Event] = []
        self.timer: Timer | None = None
        # The timer that broke the process, while that is in error.
        self.breaking_timer: Timer | None = None
        # The timer that the process had when it was broken from outside, while it is in error.
        self.suspended_timer: Timer | None = None
        self.removed_by_request = False
        self.steps: list[TakenStep] = []

    @property
    def key(self) -> ProcessKey:
        """Which process this is; there is one."""
        assert self.process is not None, "there is a process"
        return process_key(self.process.namespace, self.process.process_id)

    def next_task_id(self) -> int:
        """Return the id of a new task."""
        self._last_task_id += 1
        return self._last_task_id

    async def run(self, task: Task, timer: Timer | None = None) -> None:
        """Run a task until it succeeds, is rejected or fails for good, and save its outcome.

        The task of a `timer` is run once: to retry it, the timer is set again.
        """
        process = self.process
        assert process is not None, "a task needs a process"
        while True:  # ends with the policy's attempts
            response = await self._processor.answer(self._request(task, process), _InlineExecutor())
            refusal = refusal_of(response, task.task_type)
            if refusal is None:
                await self._save(process, task, response)
                return
            settlement = settle(task, refusal, namespace=self._namespace, now=self.now, spread=0.0)
            if not isinstance(settlement, Retry):
                assert isinstance(settlement, Fail | Break | Remove), "nothing is saved"
                task.error = settlement.error
                if isinstance(settlement, Remove):
                    # A rejected init creates no process.
                    self._clear()
                elif isinstance(settlement, Break):
                    self.break_by(settlement.error.message, timer)
                    process.corrupted_by = task.broken_by = task.task_id
                await self._record(task, None)
                return
            task.attempt += 1
            if timer is not None:
                timer.due_at, timer.attempt = self.now + settlement.delay, task.attempt
                self.timer = timer
                return
            self.now += settlement.delay

    def break_by(self, detail: str, timer: Timer | None = None) -> None:
        """Set the process in error and cancel its timer; `timer` is the one that broke it."""
        process = self._enter(types_pb2.PROCESS_STATUS_ERROR)
        process.detail = detail
        self.timer, self.breaking_timer = None, timer

    def break_from_outside(self, detail: str) -> None:
        """Set the process in error without a step; `restart` sets its timer again."""
        timer = self.timer
        self.break_by(detail)
        self.suspended_timer = timer

    def recover(self) -> None:
        """Set the process running."""
        self._enter(types_pb2.PROCESS_STATUS_RUNNING).detail = ""
        self.suspended_timer = None

    def resume(self, *, with_timer: bool) -> None:
        """Set a broken process running; `with_timer`: a timer that broke it is due now."""
        breaking_timer = self.breaking_timer
        self.recover()
        if breaking_timer is not None and with_timer:
            self.timer = breaking_timer.again(self.now)

    async def restart(self) -> None:
        """Resume a broken process, and run a timer that broke it; set a suspended one again."""
        breaking_timer, suspended_timer = self.breaking_timer, self.suspended_timer
        self.resume(with_timer=True)
        if breaking_timer is not None:
            await self.run_timer()
        elif suspended_timer is not None:
            self.timer = suspended_timer.again(self.now)

    async def run_timer(self) -> None:
        """Move the clock forward to the timer's due time, and run the timer."""
        timer = self.timer
        assert timer is not None, "there is no timer to run"
        self.now, self.timer = max(self.now, timer.due_at), None
        if timer.message.remove:
            await self.remove()
            return
        timer.first_at = timer.first_at or self.now
        has_range = timer.message.HasField("history_range")
        task = Task(
            key=self.key,
            task_id=timer.task_id,
            task_type=domain.TaskType.TIMEOUT,
            args=timer.message.args,
            history_range=timer.message.history_range if has_range else None,
            scheduled_at=timer.due_at,
            attempt=timer.attempt,
            first_started_at=timer.first_at,
        )
        await self.run(task, timer)

    def finish(self, result: bytes = b"") -> None:
        """Finish the process and cancel its timer."""
        self.timer, self.result = None, result
        self._enter(types_pb2.PROCESS_STATUS_FINISHED)

    async def remove(self, *, by_request: bool = False) -> None:
        """Remove the process, its history and its timer."""
        self._clear()
        self.removed_by_request = by_request
        await self.observed(None)

    async def observed(self, started: nodes_pb2.StartNodes | None) -> None:
        """Call the observer after a change."""
        if self._observer is not None:
            await self._observer(started)

    def _request(self, task: Task, process: types_pb2.Process) -> pb.ProcessRequest:
        request = pb.ProcessRequest(
            process=process,
            history=_in_range(self.history, task.history_range, self._config.history_last),
            task=pb.ProcessorTask(
                task_id=task.task_id,
                type=TASK_TYPE_TO_WIRE[task.task_type],
                args=task.args,
                attempt=task.attempt,
                token=task.task_id * 1_000 + task.attempt,
                scheduled_at=instant_to_wire(task.scheduled_at),
                caller_context=task.context,
                nodes=[outcome_to_wire(it, self._processor.codec) for it in task.nodes],
            ),
            deadline=instant_to_wire(self.now + self._config.step_timeout),
        )
        # A copy, so that a handler cannot change the process through the request.
        return pb.ProcessRequest.FromString(request.SerializeToString())

    async def _save(
        self, process: types_pb2.Process, task: Task, response: pb.ProcessResponse
    ) -> None:
        for event in response.events:
            process.last_event_id += 1
            recorded = types_pb2.Event(
                event_id=process.last_event_id,
                payload=event.payload,
                format_version=event.format_version,
                task_id=task.task_id,
                occurred_at=instant_to_wire(self.now),
            )
            if event.HasField("metadata"):
                recorded.metadata.CopyFrom(event.metadata)
            self.history.append(recorded)
        if response.HasField("aux_state"):
            process.aux_state = response.aux_state
        if response.HasField("metadata"):
            process.metadata.CopyFrom(response.metadata)
        self.recover()
        match response.WhichOneof("action"):
            case "remove":
                self._clear()
            case "complete":
                self.finish(response.complete.result)
            case _:
                self._change_timer(task, response)
        self.breaking_timer = None
        task.response = response.response
        starts_nodes = response.HasField("start_nodes")
        await self._record(task, response.start_nodes if starts_nodes else None)

    def _change_timer(self, task: Task, response: pb.ProcessResponse) -> None:
        match response.WhichOneof("timer"):
            case "set_timer":
                message = response.set_timer
                due_at = (
                    instant_from_wire(message.at)
                    if message.HasField("at")
                    else self.now + duration_from_wire(message.after)
                )
                self.timer = Timer(message=message, due_at=due_at, task_id=self.next_task_id())
            case "unset_timer":
                self.timer = None
            case _:
                if task.task_type is domain.TaskType.REPAIR and self.breaking_timer is not None:
                    self.timer = self.breaking_timer.again(self.now)

    def _enter(self, status: types_pb2.ProcessStatus.ValueType) -> types_pb2.Process:
        process = self.process
        assert process is not None, "a settled task has a process"
        if process.status != status:
            process.previous_status, process.status = process.status, status
            process.status_changed_at.CopyFrom(instant_to_wire(self.now))
        process.ClearField("corrupted_by")
        return process

    def _clear(self) -> None:
        self.process, self.timer, self.breaking_timer, self.suspended_timer = None, None, None, None
        self.history, self.result = [], b""
        self.removed_by_request = False

    async def _record(self, task: Task, started: nodes_pb2.StartNodes | None) -> None:
        error: TaskError | None = None
        if task.error is not None:
            error = TaskError(
                code=task.error.code, reason=task.error.reason, message=task.error.message
            )
        taken = TakenStep(
            task_id=task.task_id,
            type=TaskType(task.task_type),
            ended_at=self.now,
            attempt_count=task.attempt,
            response=self._processor.codec.decode(task.response),
            error=error,
            rejected=task.error is not None and task.error.rejected,
        )
        self.steps.append(taken)
        await self.observed(started)


def refusal_of(
    response: pb.ProcessResponse, task_type: domain.TaskType
) -> Failed | Rejected | None:
    """Return how a step failed or was rejected, by its answer; None: it succeeded."""
    match response.WhichOneof("action"):
        case "reject" if task_type in {domain.TaskType.TIMEOUT, domain.TaskType.JOIN}:
            return Failed(
                code=status_number(grpc.StatusCode.INTERNAL),
                reason="INVALID_ANSWER",
                message=f"reject: a {task_type} has no caller to refuse",
                retryable=False,
            )
        case "reject":
            reject = response.reject
            return Rejected(
                code=reject.code,
                reason=reject.reason,
                message=reject.message,
                metadata=dict(reject.metadata),
            )
        case "failure":
            failure = response.failure
            code = _CODES[failure.code or status_number(grpc.StatusCode.UNKNOWN)]
            return Failed(
                code=status_number(code),
                reason=failure.reason or code.name,
                message=failure.message,
                retryable=code in _RETRYABLE,
                retry_after=duration_from_wire(failure.retry_after),
            )
        case _:
            return None


def _in_range(
    history: Sequence[types_pb2.Event],
    requested: types_pb2.HistoryRange | None,
    last: int | None,
) -> Sequence[types_pb2.Event]:
    """Return the part of a history that was requested, or else the namespace's default."""
    if requested is None:
        return history if last is None else history[len(history) - min(last, len(history)) :]
    after = requested.after
    if requested.direction == types_pb2.DIRECTION_BACKWARD:
        found = [it for it in reversed(history) if not after or it.event_id < after]
    else:
        found = [it for it in history if it.event_id > after]
    return found[: requested.limit] if requested.HasField("limit") else found
