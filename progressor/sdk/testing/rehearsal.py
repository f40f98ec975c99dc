"""A process in memory: a processor's handlers run its steps, and the test moves the time."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Generic

from typing_extensions import TypeForm

from progressor import errors
from progressor.sdk.codec.codecs import Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Asked
from progressor.sdk.codec.wire import Seconds, instant_to_wire, object_from_wire, timedelta_of
from progressor.sdk.processor.processor import Processor
from progressor.sdk.processor.step import State
from progressor.sdk.testing.attempts import Task
from progressor.sdk.testing.carried import Carried, Ended, Observer
from progressor.sdk.values.jobs import NodeOutcome
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.process_wire import metadata_to_wire, read_event
from progressor.sdk.values.processes import Answer, Event, ProcessStatus, TaskError, TaskType
from progressor.v1 import types_pb2

STARTS_AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
"""When a rehearsal begins by default."""

TIMERS_MAX = 10_000
"""Timers that one call of `Rehearsal.advance` runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueTimer:
    """The timer of a process in a rehearsal. ``remove``: it removes it, without asking."""

    due_at: dt.datetime
    args: Payload
    remove: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """A task of a rehearsal that has ended: after how many attempts, with an answer or an error.

    ``rejected``: the handler refused it; otherwise an error is a failure.
    """

    task_id: int
    type: TaskType
    ended_at: dt.datetime
    attempt_count: int
    response: Payload
    error: TaskError | None
    rejected: bool


class Rehearsal(Generic[State]):
    """One process, carried by a processor's handlers, as an engine would have it carried.

    Requests return and raise what a client's would. Plain handlers run where the test runs. What
    is tried again by the namespace's policy is so at once, while the clock moves on.
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
        """Have no process yet.

        Args:
            processor: Who carries it.
            process_id: Its id.
            config: Whose policies, history and step timeout apply; None: the defaults.
            starts_at: What the clock says at first, an aware datetime.
            observer: Told of each settled step, of the nodes that it starts; and, of none, when
                the process is removed, or brought back without a step.
        """
        self._process_id = process_id
        self._codec, self._state_type = processor.codec, processor.state_type
        self._namespace = processor.name if config is None else config.name
        self._carried = Carried(
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
        """What the clock says."""
        return self._carried.now

    @property
    def status(self) -> ProcessStatus:
        """The status of the process; UNSPECIFIED: there is none, or it was removed."""
        process = self._carried.process
        return ProcessStatus.from_number(0 if process is None else process.status)

    @property
    def detail(self) -> str:
        """Why the process is in error; "" otherwise."""
        process = self._carried.process
        return "" if process is None else process.detail

    @property
    def state(self) -> State | None:
        """The state that the process keeps, of the processor's type; None: none."""
        process = self._carried.process
        data = b"" if process is None else process.aux_state
        state: State | None = self._codec.decode(data, self._state_type)
        return state

    @property
    def metadata(self) -> dict[str, Payload]:
        """The metadata of the process."""
        process = self._carried.process
        return {} if process is None else object_from_wire(process.metadata)

    @property
    def result(self) -> Payload:
        """What the process was completed with; None: nothing, or it was not."""
        return self.result_as(ANYTHING)

    def result_as(self, kind: TypeForm[Asked]) -> Asked:
        """Return `result`, checked to be a `kind`, as in ``order.result_as(Receipt).total``.

        Raises:
            ValueError: It is not, or there is none, and `kind` does not admit None.
        """
        return decoded(self._codec, self._carried.result, kind)

    @property
    def events(self) -> list[Payload]:
        """What was emitted, the oldest first."""
        return self.events_as(ANYTHING)

    def events_as(self, kind: TypeForm[Asked]) -> list[Asked]:
        """Return `events`, each checked to be a `kind`.

        Raises:
            ValueError: One is not.
        """
        return [decoded(self._codec, it.payload, kind) for it in self._carried.history]

    @property
    def history(self) -> tuple[Event, ...]:
        """The events with all that is recorded of them."""
        return tuple(read_event(it, self._codec) for it in self._carried.history)

    @property
    def removed_by_request(self) -> bool:
        """Whether `remove` deleted the process, rather than a step of its own."""
        return self._carried.process is None and self._carried.removed_by_request

    @property
    def timer(self) -> DueTimer | None:
        """The timer of the process; None: none."""
        timer = self._carried.timer
        if timer is None:
            return None
        return DueTimer(
            due_at=timer.due_at,
            args=self._codec.decode(timer.message.args),
            remove=timer.message.remove,
        )

    @property
    def steps(self) -> tuple[TakenStep, ...]:
        """The tasks that have ended, in their order; also those of a process that is removed."""
        return tuple(
            TakenStep(
                task_id=it.task.task_id,
                type=it.task.type,
                ended_at=it.at,
                attempt_count=it.task.attempt,
                response=self._codec.decode(it.response),
                error=it.error,
                rejected=it.reject is not None,
            )
            for it in self._carried.ended
        )

    async def start(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        metadata: Mapping[str, Payload] | None = None,
        nodes: Iterable[NodeOutcome] = (),
        response_type: TypeForm[Asked] = ANYTHING,
    ) -> Answer[Asked]:
        """Create the process by its first step; `nodes` are what a node of a job asked for.

        Raises:
            ProcessAlreadyExistsError: It is there.
            RejectedError: The handler refused; the process was not created.
            ProcessFailedError: It broke the process.
        """
        if self._carried.process is not None:
            raise errors.ProcessAlreadyExistsError(self._namespace, self._process_id)
        now = instant_to_wire(self.now)
        self._carried.process = types_pb2.Process(
            namespace=self._namespace,
            process_id=self._process_id,
            status=types_pb2.PROCESS_STATUS_INIT,
            created_at=now,
            status_changed_at=now,
            metadata=metadata_to_wire(metadata),
        )
        ended = await self._ask(TaskType.INIT, args, context, nodes=tuple(nodes))
        return self._told(ended, response_type)

    async def call(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        response_type: TypeForm[Asked] = ANYTHING,
    ) -> Answer[Asked]:
        """Have a call handled, and return the answer.

        Raises:
            RejectedError: The handler refused; the process is as it was.
            TaskFailedError: It failed, and the namespace lets a call fail alone.
            ProcessFailedError, ProcessFinishedError: The process takes no calls, or went there.
            ProcessNotFoundError: There is none.
        """
        self._expect_running()
        return self._told(await self._ask(TaskType.CALL, args, context), response_type)

    async def notify(
        self, args: Payload = None, *, context: Mapping[str, str] | None = None
    ) -> None:
        """Have a notification handled; how that went is the last of `steps`.

        Raises:
            ProcessFailedError, ProcessFinishedError, ProcessNotFoundError: It takes none.
        """
        self._expect_running()
        await self._ask(TaskType.NOTIFY, args, context)

    async def repair(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        response_type: TypeForm[Asked] = ANYTHING,
    ) -> Answer[Asked]:
        """Have a repair handled, and return the answer.

        With no action of its own, the timer that broke the process is due now.

        Raises:
            RejectedError, RepairFailedError: The process is in error exactly as it was.
            ProcessIsRunningError, ProcessFinishedError: There is nothing to repair.
        """
        self._expect_broken()
        return self._told(await self._ask(TaskType.REPAIR, args, context), response_type)

    async def simple_repair(self) -> None:
        """Bring the process back without asking; the timer that broke it runs again, now.

        Raises:
            ProcessIsRunningError, ProcessFinishedError: There is nothing to repair.
        """
        self._expect_broken()
        breaker = self._carried.breaker
        if breaker is None:
            self._carried.recover()
            await self._carried.observed(None)
        else:
            self._carried.timer = breaker.again(self.now)
            await self.run_timer()

    async def join(self, nodes: Iterable[NodeOutcome]) -> None:
        """Tell the process, a leader, how all nodes of its job have ended.

        How that went is the last of `steps`, and `status`.

        Raises:
            ProcessFailedError, ProcessFinishedError, ProcessNotFoundError: It leads no more.
        """
        self._expect_running()
        await self._ask(TaskType.JOIN, None, None, nodes=tuple(nodes))

    async def remove(self) -> None:
        """Remove the process with all that belongs to it; `steps` stay.

        Raises:
            ProcessNotFoundError: There is none.
        """
        self._expect_process()
        await self._carried.vanish(by_request=True)

    async def run_timer(self) -> None:
        """Move the clock to when the timer is due, if that is to come, and run it.

        How that went is the last of `steps`; one that is tried again is the timer as before.

        Raises:
            ValueError: There is none.
        """
        carried, timer = self._carried, self._carried.timer
        if timer is None:
            message = f"process {self._process_id!r} has no timer to run"
            raise ValueError(message)
        carried.now, carried.timer = max(carried.now, timer.due_at), None
        if timer.message.remove:
            await carried.vanish()
            return
        timer.first_at = timer.first_at or carried.now
        asks_range = timer.message.HasField("history_range")
        task = Task(
            task_id=timer.task_id,
            type=TaskType.TIMEOUT,
            args=timer.message.args,
            history_range=timer.message.history_range if asks_range else None,
            scheduled_at=timer.due_at,
            attempt=timer.attempt,
            first_at=timer.first_at,
        )
        await carried.carry_out(task, timer)

    async def advance(self, by: Seconds = 0) -> int:
        """Let time pass, and run each timer that becomes due, when it does; return how many did.

        Raises:
            RuntimeError: Timers follow each other without an end.
        """
        carried = self._carried
        until, count = carried.now + timedelta_of(by), 0
        while carried.timer is not None and carried.timer.due_at <= until:  # TIMERS_MAX at most
            if count == TIMERS_MAX:
                message = f"{TIMERS_MAX} timers have run, and another one is due until {until}"
                raise RuntimeError(message)
            await self.run_timer()
            count += 1
        carried.now = max(carried.now, until)
        return count

    def break_by(self, detail: str) -> None:
        """Put the process into error, as the engine does with what runs in a job that has ended."""
        self._expect_running()
        self._carried.halt(detail)

    def finish(self) -> None:
        """Finish the process, as the engine does with who leads a job that is cancelled."""
        self._expect_running()
        self._carried.finish()

    async def begin_again(self) -> None:
        """Have a broken process run on, as the engine does in a job that is retried.

        The timer that broke it, if one did, runs now; one that was taken from it by `break_by` is
        due when it was.
        """
        self._expect_broken()
        carried = self._carried
        breaker, halted = carried.breaker, carried.halted
        carried.recover()
        if breaker is not None:
            carried.timer = breaker.again(self.now)
            await self.run_timer()
        elif halted is not None:
            carried.timer = halted.again(self.now)

    def resume(self, *, with_timer: bool) -> None:
        """Have a broken process run, as the engine does with who leads a job that goes on.

        `with_timer`: the timer that broke it, if one did, is due now.
        """
        self._expect_broken()
        breaker = self._carried.breaker
        self._carried.recover()
        if breaker is not None and with_timer:
            self._carried.timer = breaker.again(self.now)

    async def _ask(
        self,
        task_type: TaskType,
        args: Payload,
        context: Mapping[str, str] | None,
        *,
        nodes: tuple[NodeOutcome, ...] = (),
    ) -> Ended:
        task = Task(
            task_id=self._carried.next_task_id(),
            type=task_type,
            args=self._codec.encode(args),
            context=context or {},
            nodes=nodes,
            scheduled_at=self.now,
            first_at=self.now,
        )
        return await self._carried.carry_out(task)

    def _told(self, ended: Ended, response_type: TypeForm[Asked]) -> Answer[Asked]:
        """Return the answer that a caller gets, or raise the error."""
        task, error, reject = ended.task, ended.error, ended.reject
        if reject is not None:
            raise errors.RejectedError(
                reject.message,
                code=reject.code,
                processor_reason=reject.reason,
                metadata=dict(reject.metadata),
            )
        if error is None:
            response = decoded(self._codec, ended.response, response_type)
            return Answer(task_id=task.task_id, response=response, deduplicated=False)
        failure = errors.StepFailure(code=error.code, reason=error.reason)
        if task.type is TaskType.REPAIR:
            broken_by = None if self._carried.process is None else self._broken_by()
            failure = dataclasses.replace(failure, broken_by=broken_by)
            raise errors.RepairFailedError(self._process_id, error.message, task.task_id, failure)
        if ended.is_alone:
            raise errors.TaskFailedError(self._process_id, error.message, task.task_id, failure)
        raise errors.ProcessFailedError(
            self._process_id,
            error.message,
            own=True,
            task_id=task.task_id,
            failure=dataclasses.replace(failure, broken_by=task.task_id),
        )

    def _broken_by(self) -> int | None:
        return self._expect_process().corrupted_by or None

    def _expect_process(self) -> types_pb2.Process:
        if self._carried.process is None:
            raise errors.ProcessNotFoundError(self._namespace, self._process_id)
        return self._carried.process

    def _expect_running(self) -> None:
        process = self._expect_process()
        if self.status is ProcessStatus.FINISHED:
            raise errors.ProcessFinishedError(self._process_id)
        if self.status is ProcessStatus.ERROR:
            broken_by = self._broken_by()
            found = (it.error for it in self._carried.ended if it.task.task_id == broken_by)
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
