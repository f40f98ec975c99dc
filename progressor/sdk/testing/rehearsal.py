"""A process in memory: its processor's handlers run its steps, and the test moves the clock."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Generic

from typing_extensions import TypeForm

from progressor import errors
from progressor.domain.processes.task import TaskType
from progressor.sdk.codec.codecs import Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.codec.wire import (
    Seconds,
    instant_to_wire,
    object_from_wire,
    object_to_wire,
    optional,
    timedelta_of,
)
from progressor.sdk.processor.processor import Processor
from progressor.sdk.processor.step import State
from progressor.sdk.testing.simulated_process import (
    Observer,
    SimulatedProcess,
    TakenStep,
    Task,
)
from progressor.sdk.values.jobs import NodeOutcome
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.processes import Event, ProcessStatus, Reply, read_event
from progressor.v1 import types_pb2

STARTS_AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
"""The default start of the clock."""

TIMERS_MAX = 10_000
"""Timers that one call of `Rehearsal.advance` runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueTimer:
    """The timer of a process in a rehearsal. ``remove``: it removes the process."""

    due_at: dt.datetime
    args: Payload
    remove: bool


class Rehearsal(Generic[State]):
    """A process whose steps run in a processor's handlers by the rules of the engine.

    Requests return and raise what they do in a client. Plain handlers run in the thread of the
    test. A retry runs at once, and the clock moves by its pause.
    """

    def __init__(
        self,
        processor: Processor[State],
        process_id: str = "process-1",
        *,
        config: NamespaceConfig | None = None,
        starts_at: dt.datetime = STARTS_AT,
        observer: Observer | None = None,
    ) -> None:
        """Create a rehearsal without a process; `start` creates the process.

        Args:
            processor: Its handlers run the steps.
            process_id: The id of the process.
            config: Its policies, history and step timeout apply; None: the defaults.
            starts_at: The start of the clock, an aware datetime.
            observer: Called after each settled step with the nodes that the step starts, and with
                None after the process was removed, or resumed without a step.
        """
        self._process_id = process_id
        self._codec, self._state_type = processor.codec, processor.state_type
        self._namespace = processor.name if config is None else config.name
        # For `SimulatedJob`, which changes it as the engine does.
        self.simulated = SimulatedProcess(
            processor,
            config=config or NamespaceConfig(name=processor.name, processor_targets=()),
            now=starts_at,
            observer=observer,
        )

    @property
    def process_id(self) -> str:
        """The id of the process."""
        return self._process_id

    @property
    def now(self) -> dt.datetime:
        """The time of the clock."""
        return self.simulated.now

    @property
    def status(self) -> ProcessStatus:
        """The status of the process; UNSPECIFIED: not started, or removed."""
        process = self.simulated.process
        return ProcessStatus.from_number(0 if process is None else process.status)

    @property
    def detail(self) -> str:
        """Why the process is in error; "" otherwise."""
        process = self.simulated.process
        return "" if process is None else process.detail

    @property
    def state(self) -> State | None:
        """The state of the process, of the processor's state type; None: it has none."""
        process = self.simulated.process
        data = b"" if process is None else process.aux_state
        state: State | None = self._codec.decode(data, self._state_type)
        return state

    @property
    def metadata(self) -> dict[str, Payload]:
        """The metadata of the process."""
        process = self.simulated.process
        return {} if process is None else object_from_wire(process.metadata)

    @property
    def result(self) -> Payload:
        """The result of the process; None: none, or the process is not finished."""
        return self.result_as(ANYTHING)

    def result_as(self, kind: TypeForm[Decoded]) -> Decoded:
        """Return `result` as a `kind`, as in ``order.result_as(Receipt).total``.

        Raises:
            ValueError: The result is not a `kind`, or there is none and `kind` does not admit None.
        """
        return decoded(self._codec, self.simulated.result, kind)

    @property
    def events(self) -> list[Payload]:
        """The payloads of the emitted events, the oldest first."""
        return self.events_as(ANYTHING)

    def events_as(self, kind: TypeForm[Decoded]) -> list[Decoded]:
        """Return `events`, each as a `kind`.

        Raises:
            ValueError: An event is not a `kind`.
        """
        return [decoded(self._codec, it.payload, kind) for it in self.simulated.history]

    @property
    def history(self) -> tuple[Event, ...]:
        """The emitted events as recorded."""
        return tuple(read_event(it, self._codec) for it in self.simulated.history)

    @property
    def removed_by_request(self) -> bool:
        """Whether `remove` deleted the process, not a step of its own."""
        return self.simulated.process is None and self.simulated.removed_by_request

    @property
    def timer(self) -> DueTimer | None:
        """The timer of the process; None: none."""
        timer = self.simulated.timer
        if timer is None:
            return None
        return DueTimer(
            due_at=timer.due_at,
            args=self._codec.decode(timer.message.args),
            remove=timer.message.remove,
        )

    @property
    def steps(self) -> tuple[TakenStep, ...]:
        """The tasks that have ended, in order; also those of a removed process."""
        return tuple(self.simulated.steps)

    async def start(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        metadata: Mapping[str, Payload] | None = None,
        nodes: Iterable[NodeOutcome] = (),
        response_type: TypeForm[Decoded] = ANYTHING,
    ) -> Reply[Decoded]:
        """Create the process by its init task.

        For the process of a job's node, `nodes` are the outcomes of its predecessors.

        Raises:
            ProcessAlreadyExistsError: The process exists.
            RejectedError: The handler rejected the request; the process was not created.
            ProcessFailedError: The init task broke the process.
        """
        if self.simulated.process is not None:
            raise errors.ProcessAlreadyExistsError(self._namespace, self._process_id)
        now = instant_to_wire(self.now)
        self.simulated.process = types_pb2.Process(
            namespace=self._namespace,
            process_id=self._process_id,
            status=types_pb2.PROCESS_STATUS_INIT,
            created_at=now,
            status_changed_at=now,
            metadata=optional(object_to_wire, metadata),
        )
        ended = await self._ask(TaskType.INIT, args, context, nodes=nodes)
        return self._reply_of(ended, response_type)

    async def call(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        response_type: TypeForm[Decoded] = ANYTHING,
    ) -> Reply[Decoded]:
        """Call the process, and return the answer.

        Raises:
            RejectedError: The handler rejected the call; the process is unchanged.
            TaskFailedError: The call failed, and the namespace lets calls fail alone.
            ProcessFailedError: The process is in error, or the call broke it.
            ProcessFinishedError: The process is finished.
            ProcessNotFoundError: The process does not exist.
        """
        self._expect_running()
        return self._reply_of(await self._ask(TaskType.CALL, args, context), response_type)

    async def notify(
        self, args: Payload = None, *, context: Mapping[str, str] | None = None
    ) -> None:
        """Notify the process; the last of `steps` is the outcome.

        Raises:
            ProcessFailedError: The process is in error.
            ProcessFinishedError: The process is finished.
            ProcessNotFoundError: The process does not exist.
        """
        self._expect_running()
        await self._ask(TaskType.NOTIFY, args, context)

    async def repair(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        response_type: TypeForm[Decoded] = ANYTHING,
    ) -> Reply[Decoded]:
        """Repair the process by its handler, and return the answer.

        If the handler changes no timer, the timer that broke the process is due now.

        Raises:
            RejectedError, RepairFailedError: The repair failed; the process is in error as before.
            ProcessIsRunningError, ProcessFinishedError: The process is not in error.
        """
        self._expect_broken()
        return self._reply_of(await self._ask(TaskType.REPAIR, args, context), response_type)

    async def simple_repair(self) -> None:
        """Resume the process without its handler; a timer that broke it runs again now.

        Raises:
            ProcessIsRunningError, ProcessFinishedError: The process is not in error.
        """
        self._expect_broken()
        breaking_timer = self.simulated.breaking_timer
        if breaking_timer is None:
            self.simulated.recover()
            await self.simulated.observed(None)
        else:
            self.simulated.timer = breaking_timer.again(self.now)
            await self.simulated.run_timer()

    async def join(self, nodes: Iterable[NodeOutcome]) -> None:
        """Run the join handler of the process, a leader, with the outcomes of all nodes.

        The last of `steps`, and `status`, are the outcome.

        Raises:
            ProcessFailedError, ProcessFinishedError, ProcessNotFoundError: It no longer runs.
        """
        self._expect_running()
        await self._ask(TaskType.JOIN, None, None, nodes=nodes)

    async def remove(self) -> None:
        """Remove the process; `steps` are kept.

        Raises:
            ProcessNotFoundError: The process does not exist.
        """
        self._expect_process()
        await self.simulated.remove(by_request=True)

    async def run_timer(self) -> None:
        """Move the clock forward to the timer's due time, and run the timer.

        The last of `steps` is the outcome. If the attempt is retried, the timer is set again.

        Raises:
            ValueError: The process has no timer.
        """
        if self.simulated.timer is None:
            message = f"process {self._process_id!r} has no timer to run"
            raise ValueError(message)
        await self.simulated.run_timer()

    async def advance(self, by: Seconds = 0) -> int:
        """Move the clock, and run each timer at its due time; return how many ran.

        Args:
            by: In seconds or a timedelta.

        Raises:
            RuntimeError: `TIMERS_MAX` timers have run, and another is due.
        """
        simulated = self.simulated
        until, count = simulated.now + timedelta_of(by), 0
        while simulated.timer is not None and simulated.timer.due_at <= until:  # TIMERS_MAX at most
            if count == TIMERS_MAX:
                message = f"{TIMERS_MAX} timers have run, and another is due until {until}"
                raise RuntimeError(message)
            await simulated.run_timer()
            count += 1
        simulated.now = max(simulated.now, until)
        return count

    async def _ask(
        self,
        task_type: TaskType,
        args: Payload,
        context: Mapping[str, str] | None,
        *,
        nodes: Iterable[NodeOutcome] = (),
    ) -> Task:
        task = Task(
            key=self.simulated.key,
            task_id=self.simulated.next_task_id(),
            task_type=task_type,
            args=self._codec.encode(args),
            context=context or {},
            nodes=tuple(nodes),
            broken_by=self._expect_process().corrupted_by or None,
            scheduled_at=self.now,
            first_started_at=self.now,
        )
        await self.simulated.run(task)
        return task

    def _reply_of(self, task: Task, response_type: TypeForm[Decoded]) -> Reply[Decoded]:
        """Return the answer for the caller, or raise the error."""
        error = task.error
        if error is None:
            response = decoded(self._codec, task.response, response_type)
            return Reply(task_id=task.task_id, response=response, deduplicated=False)
        if error.rejected:
            raise errors.RejectedError(
                error.message,
                code=error.code,
                processor_reason=error.reason,
                metadata=error.metadata,
            )
        failure = errors.StepFailure(broken_by=task.broken_by, code=error.code, reason=error.reason)
        arguments = (self._process_id, error.message, task.task_id, failure)
        if task.task_type is TaskType.REPAIR:
            raise errors.RepairFailedError(*arguments)
        if "alone" in error.metadata:
            raise errors.TaskFailedError(*arguments)
        raise errors.ProcessFailedError(*arguments, own=True)

    def _expect_process(self) -> types_pb2.Process:
        if self.simulated.process is None:
            raise errors.ProcessNotFoundError(self._namespace, self._process_id)
        return self.simulated.process

    def _expect_running(self) -> None:
        process = self._expect_process()
        if self.status is ProcessStatus.FINISHED:
            raise errors.ProcessFinishedError(self._process_id)
        if self.status is ProcessStatus.ERROR:
            broken_by = process.corrupted_by or None
            found = (it.error for it in self.simulated.steps if it.task_id == broken_by)
            error = next(found, None)
            failure = errors.StepFailure(
                broken_by=broken_by,
                code=None if error is None else error.code,
                reason=None if error is None else error.reason,
            )
            raise errors.ProcessFailedError(self._process_id, process.detail, failure=failure)

    def _expect_broken(self) -> None:
        self._expect_process()
        if self.status is ProcessStatus.FINISHED:
            raise errors.ProcessFinishedError(self._process_id)
        if self.status is not ProcessStatus.ERROR:
            raise errors.ProcessIsRunningError(self._process_id)
