"""A process in memory: its processor's handlers run its steps, and the test moves the clock.

A step is saved as a whole or not at all; `progressor.domain.processes.settlement` decides what a
failure or a rejection means. The clock moves by the pauses between attempts, without jitter. There
is one caller, so no task waits for another.
"""

import dataclasses
import datetime as dt
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, Self

from typing_extensions import TypeForm

from progressor import errors
from progressor.domain.processes import task as domain
from progressor.domain.processes.message import Sender
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import OnError
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.settlement import Break, Fail, Remove, Retry, settle
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
from progressor.sdk.testing.answers import (
    InlineExecutor,
    in_range,
    invalid_answer,
    recorded,
    refusal_of,
)
from progressor.sdk.testing.link import RehearsedLink
from progressor.sdk.testing.messages import Messages
from progressor.sdk.testing.records import TakenStep, Task
from progressor.sdk.testing.snapshots import Stored, stored_process
from progressor.sdk.testing.timers import DueTimer, Timer, Timers, due_at, in_order, timer_changes
from progressor.sdk.values.jobs import NodeOutcome, outcome_to_wire
from progressor.sdk.values.messages import AwaitedReply, SentMessage
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.sdk.values.processes import (
    Event,
    ProcessStatus,
    Reply,
    TaskType,
    read_event,
)
from progressor.sdk.values.replies import TaskError
from progressor.v1 import messages_pb2, nodes_pb2, types_pb2
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire.messages import SENDER
from progressor.wire.processes import TASK_TYPE_TO_WIRE

STARTS_AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
"""The default start of the clock."""

TIMERS_MAX = 10_000
"""Timers that one call of `Rehearsal.advance` runs."""


Observer = Callable[[nodes_pb2.StartNodes | None], Awaitable[None]]
"""Called after each change of a process, with the nodes that its step starts; None: none."""


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
        processor.check_upgrades()
        self._process_id, self._codec = process_id, processor.codec
        self._namespace = processor.name if config is None else config.name
        config = config or NamespaceConfig(name=processor.name, processor_targets=())
        self._processor, self._config, self._observer = processor, config, observer
        self._policies = Namespace(
            name=config.name,
            processor_targets=(),
            retry_policy=config.retry_policy,
            retry_policies={
                domain.TaskType(it): policy for it, policy in config.retry_policies.items()
            },
            exhausted_call_fails_alone=config.exhausted_call_fails_alone,
            on_error=OnError(config.on_error.value),
        )
        self._task_ids = itertools.count(1)
        self._now = starts_at
        self._process: types_pb2.Process | None = None
        self._result = b""
        self._history: list[types_pb2.Event] = []
        self._timers: Timers = {}
        # The task that broke the process, and its timer, while that is in error.
        self._breaking_task: Task | None = None
        self._breaking_timer: Timer | None = None
        # The timers that the process had when it was broken from outside, while it is in error.
        self._suspended_timers: Timers = {}
        self._removed_by_request = False
        self._steps: list[TakenStep] = []
        self._messages = Messages(self._codec)

    @classmethod
    def from_snapshot(
        cls,
        processor: Processor[State],
        snapshot: Stored,
        *,
        config: NamespaceConfig | None = None,
        starts_at: dt.datetime | None = None,
    ) -> Self:
        """Return a rehearsal of a stored process, to try new code on a process from production.

        It has the state, the events and the timers of the snapshot, but no tasks: a timer has no
        args, and a process in error can be repaired, not retried.

        Args:
            processor: Its handlers run the steps.
            snapshot: What `Client.get` returned, or what ``progressor get --json`` printed.
            config: As for a new process.
            starts_at: The start of the clock; None: the latest change that the snapshot shows.

        Raises:
            ValueError: The document is not one of ``progressor get``; the message names the field.
        """
        stored = stored_process(snapshot, processor.codec)
        process = stored.process
        rehearsal = cls(
            processor,
            process.process_id,
            config=config,
            starts_at=stored.changed_at if starts_at is None else starts_at,
        )
        process.namespace = rehearsal._namespace
        rehearsal._process, rehearsal._result = process, process.result
        rehearsal._history = stored.history
        rehearsal._task_ids = itertools.count(stored.last_task_id + 1)
        rehearsal._timers = {
            it.name: Timer(
                name=it.name,
                message=types_pb2.SetTimer(remove=it.type is TaskType.REMOVE),
                due_at=it.due_at,
                task_id=it.task_id,
            )
            for it in stored.timers
        }
        return rehearsal

    @property
    def process_id(self) -> str:
        """The id of the process."""
        return self._process_id

    @property
    def now(self) -> dt.datetime:
        """The time of the clock."""
        return self._now

    @property
    def status(self) -> ProcessStatus:
        """The status of the process; UNSPECIFIED: not started, or removed."""
        return ProcessStatus.from_number(0 if self._process is None else self._process.status)

    @property
    def detail(self) -> str:
        """Why the process is in error, or was terminated; "" otherwise."""
        return "" if self._process is None else self._process.detail

    @property
    def state(self) -> State | None:
        """The state of the process, as a step would read it; None: it has none."""
        process = self._process
        if process is None:
            return None
        return self._processor.decode_state(process.aux_state, process.state_version)

    @property
    def metadata(self) -> dict[str, Payload]:
        """The metadata of the process."""
        return {} if self._process is None else object_from_wire(self._process.metadata)

    @property
    def result(self) -> Payload:
        """The result of the process; None: none, or the process is not finished."""
        return self.result_as(ANYTHING)

    def result_as(self, kind: TypeForm[Decoded]) -> Decoded:
        """Return `result` as a `kind`, as in ``order.result_as(Receipt).total``.

        Raises:
            ValueError: The result is not a `kind`, or there is none and `kind` does not admit None.
        """
        return decoded(self._codec, self._result, kind)

    @property
    def events(self) -> list[Payload]:
        """The payloads of the emitted events, the oldest first."""
        return self.events_as(ANYTHING)

    def events_as(self, kind: TypeForm[Decoded]) -> list[Decoded]:
        """Return `events`, each as a `kind`.

        Raises:
            ValueError: An event is not a `kind`.
        """
        return [decoded(self._codec, it.payload, kind) for it in self._history]

    @property
    def history(self) -> tuple[Event, ...]:
        """The emitted events as recorded."""
        return tuple(read_event(it, self._codec) for it in self._history)

    @property
    def removed_by_request(self) -> bool:
        """Whether `remove` deleted the process, not a step of its own."""
        return self._process is None and self._removed_by_request

    @property
    def timer(self) -> DueTimer | None:
        """The earliest timer of the process; None: none."""
        return next(iter(self.timers.values()), None)

    @property
    def timers(self) -> Mapping[str, DueTimer]:
        """The timers of the process by their names, the earliest first."""
        return {it.name: it.shown(self._codec) for it in in_order(self._timers)}

    @property
    def steps(self) -> tuple[TakenStep, ...]:
        """The tasks that have ended, in order; also those of a removed process."""
        return tuple(self._steps)

    @property
    def messages(self) -> tuple[SentMessage, ...]:
        """The messages that steps have sent, in order; `answer` replies to one."""
        return tuple(self._messages.sent)

    async def start(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        metadata: Mapping[str, Payload] | None = None,
        nodes: Iterable[NodeOutcome] = (),
        sender: Sender | None = None,
        response_type: TypeForm[Decoded] = ANYTHING,
    ) -> Reply[Decoded]:
        """Create the process by its init task.

        For the process of a job's node, `nodes` are the outcomes of its predecessors. With a
        `sender` it is started by a message of that process.

        Raises:
            ProcessAlreadyExistsError: The process exists.
            RejectedError: The handler rejected the request; the process was not created.
            ProcessFailedError: The init task broke the process.
        """
        if self._process is not None:
            raise errors.ProcessAlreadyExistsError(self._namespace, self._process_id)
        now = instant_to_wire(self.now)
        self._process = types_pb2.Process(
            namespace=self._namespace,
            process_id=self._process_id,
            status=types_pb2.PROCESS_STATUS_INIT,
            created_at=now,
            status_changed_at=now,
            metadata=optional(object_to_wire, metadata),
        )
        ended = await self._ask(domain.TaskType.INIT, args, context, nodes=nodes, sender=sender)
        return self._reply_of(ended, response_type)

    async def call(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        sender: Sender | None = None,
        response_type: TypeForm[Decoded] = ANYTHING,
    ) -> Reply[Decoded]:
        """Call the process, and return the answer; with a `sender` by a message of that process.

        Raises:
            RejectedError: The handler rejected the call; the process is unchanged.
            TaskFailedError: The call failed, and the namespace lets calls fail alone.
            ProcessFailedError: The process is in error, or the call broke it.
            ProcessFinishedError: The process is finished.
            ProcessNotFoundError: The process does not exist.
        """
        self._expect_running()
        ended = await self._ask(domain.TaskType.CALL, args, context, sender=sender)
        return self._reply_of(ended, response_type)

    async def notify(
        self,
        args: Payload = None,
        *,
        context: Mapping[str, str] | None = None,
        sender: Sender | None = None,
    ) -> None:
        """Notify the process, with a `sender` by a message of that process.

        The last of `steps` is the outcome.

        Raises:
            ProcessFailedError: The process is in error.
            ProcessFinishedError: The process is finished.
            ProcessNotFoundError: The process does not exist.
        """
        self._expect_running()
        await self._ask(domain.TaskType.NOTIFY, args, context, sender=sender)

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
        return self._reply_of(await self._ask(domain.TaskType.REPAIR, args, context), response_type)

    async def retry(self) -> None:
        """Run the task that broke the process again; the last of `steps` is its new outcome.

        Raises:
            NothingToRetryError: No task broke the process.
            ValueError: It is from a snapshot, which does not have the task that broke it.
            ProcessIsRunningError, ProcessFinishedError: The process is not in error.
        """
        self._expect_broken()
        if self._breaking_timer is not None:
            await self.simple_repair()
            return
        if self._breaking_task is None:
            if self._expect_process().corrupted_by:
                message = "a snapshot does not have the task that broke the process: repair it"
                raise ValueError(message)
            raise errors.NothingToRetryError(self._process_id)
        again = dataclasses.replace(
            self._breaking_task, attempt=1, broken_by=None, error=None, tried_for=dt.timedelta()
        )
        await self._run(again)

    async def simple_repair(self) -> None:
        """Resume the process without its handler; a timer that broke it runs again now.

        Raises:
            ProcessIsRunningError, ProcessFinishedError: The process is not in error.
        """
        self._expect_broken()
        breaking_timer = self._breaking_timer
        if breaking_timer is None:
            self._recover()
            await self._observed(None)
        else:
            await self._run_timer(breaking_timer.again(self.now))

    async def join(self, nodes: Iterable[NodeOutcome]) -> None:
        """Run the join handler of the process, a leader, with the outcomes of all nodes.

        The last of `steps`, and `status`, are the outcome.

        Raises:
            ProcessFailedError, ProcessFinishedError, ProcessNotFoundError: It no longer runs.
        """
        self._expect_running()
        await self._ask(domain.TaskType.JOIN, None, None, nodes=nodes)

    async def terminate(self, reason: str) -> None:
        """Finish the process without a result, in any status; `detail` is the reason.

        Raises:
            ValueError: The reason is empty.
            ProcessFinishedError, ProcessNotFoundError: It has ended already.
        """
        if not reason.strip():
            message = "a process must be terminated for a reason, got an empty one"
            raise ValueError(message)
        self._expect_process()
        if self.status is ProcessStatus.FINISHED:
            raise errors.ProcessFinishedError(self._process_id)
        self._finish(detail=reason)
        await self._observed(None)

    async def answer(
        self,
        message: SentMessage | AwaitedReply,
        response: Payload = None,
        *,
        error: TaskError | None = None,
        rejected: bool = False,
    ) -> None:
        """Run the reply handler of the process with the answer to one of its `messages`.

        A message is answered once, with a response or an error; ``rejected``: the error is a
        rejection by a handler. In a rehearsal from a snapshot, its `awaited_replies` can be
        answered, too. The last of `steps` is the outcome.

        Raises:
            ValueError: The process has not sent the message, or it was already answered or has no
                `reply`; or both a response and an error are given.
            ProcessFailedError, ProcessFinishedError, ProcessNotFoundError: It no longer runs.
        """
        self._expect_running()
        reply = self._messages.answer(message, response, error, rejected=rejected)
        known = message.receiver_task_id if isinstance(message, AwaitedReply) else None
        sender = Sender(
            namespace=message.namespace,
            process_id=message.process_id,
            task_id=known or next(self._task_ids),
        )
        await self._ask(domain.TaskType.REPLY, None, None, reply=reply, sender=sender)

    async def remove(self) -> None:
        """Remove the process; `steps` are kept.

        Raises:
            ProcessNotFoundError: The process does not exist.
        """
        self._expect_process()
        await self._remove(by_request=True)

    async def run_timer(self, name: str | None = None) -> None:
        """Move the clock forward to the due time of the earliest timer, and run it.

        With a `name`, run timers until that one has run. The last of `steps` is the outcome. If the
        attempt is retried, the timer is set again.

        Raises:
            ValueError: The process has no timer, or none of this name.
            ProcessFailedError: The process is in error, and its timers are held.
            RuntimeError: `TIMERS_MAX` timers have run before the one of this name.
        """
        for _ in range(TIMERS_MAX):
            if not self._timers if name is None else name not in self._timers:
                named = "timer" if name is None else f"timer {name!r}"
                message = f"process {self._process_id!r} has no {named} to run"
                raise ValueError(message)
            self._expect_running()
            timer = in_order(self._timers)[0]
            await self._run_timer(timer)
            if name is None or timer.name == name:
                return
        message = f"{TIMERS_MAX} timers have run before timer {name!r}"
        raise RuntimeError(message)

    async def _run_timer(self, timer: Timer) -> None:
        self._now = max(self._now, timer.due_at)
        self._timers.pop(timer.name, None)
        if timer.message.remove:
            await self._remove()
            return
        has_range = timer.message.HasField("history_range")
        task = Task(
            key=self._key(),
            task_id=timer.task_id,
            task_type=domain.TaskType.TIMEOUT,
            args=timer.message.args,
            history_range=timer.message.history_range if has_range else None,
            scheduled_at=timer.due_at,
            attempt=timer.attempt,
            started_at=self._now,
            tried_for=timer.tried_for,
            timer_name=timer.name,
            memos=timer.memos,
        )
        await self._run(task, timer)

    async def advance(self, by: Seconds = 0) -> int:
        """Move the clock, and run each timer at its due time; return how many ran.

        Args:
            by: In seconds or a timedelta.

        Raises:
            RuntimeError: `TIMERS_MAX` timers have run, and another is due.
        """
        until, count = self._now + timedelta_of(by), 0
        while (
            (timer := self.timer) is not None
            and timer.due_at <= until
            and self.status is not ProcessStatus.ERROR
        ):  # TIMERS_MAX at most
            if count == TIMERS_MAX:
                message = f"{TIMERS_MAX} timers have run, and another is due until {until}"
                raise RuntimeError(message)
            await self.run_timer()
            count += 1
        self._now = max(self._now, until)
        return count

    async def _ask(
        self,
        task_type: domain.TaskType,
        args: Payload,
        context: Mapping[str, str] | None,
        *,
        nodes: Iterable[NodeOutcome] = (),
        reply: messages_pb2.MessageReply | None = None,
        sender: Sender | None = None,
    ) -> Task:
        task = Task(
            key=self._key(),
            task_id=next(self._task_ids),
            task_type=task_type,
            args=self._codec.encode(args),
            context=context or {},
            nodes=tuple(nodes),
            reply=reply,
            sender=sender,
            broken_by=self._expect_process().corrupted_by or None,
            scheduled_at=self.now,
            started_at=self.now,
        )
        await self._run(task)
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
        if task.task_type is domain.TaskType.REPAIR:
            raise errors.RepairFailedError(*arguments)
        if "alone" in error.metadata:
            raise errors.TaskFailedError(*arguments)
        raise errors.ProcessFailedError(*arguments, own=True)

    def _expect_process(self) -> types_pb2.Process:
        if self._process is None:
            raise errors.ProcessNotFoundError(self._namespace, self._process_id)
        return self._process

    def _expect_running(self) -> None:
        process = self._expect_process()
        if self.status is ProcessStatus.FINISHED:
            raise errors.ProcessFinishedError(self._process_id)
        if self.status is ProcessStatus.ERROR:
            broken_by = process.corrupted_by or None
            found = (it.error for it in self._steps if it.task_id == broken_by)
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

    def _key(self) -> ProcessKey:
        return process_key(self._namespace, self._process_id)

    async def _run(self, task: Task, timer: Timer | None = None) -> None:
        """Run a task until it succeeds, is rejected or fails for good, and save its outcome.

        The task of a `timer` is run once, unless the process is in error: to retry it, the timer is
        set again.
        """
        process = self._process
        assert process is not None, "a task needs a process"
        while True:  # ends with the policy's attempts
            task.started_at = self._now
            link = RehearsedLink(task.memos, self._now, self._config, scope=self)
            request = self._request(task, process)
            response = await self._processor.answer(request, InlineExecutor(link), link)
            refusal = refusal_of(response, task.task_type)
            refusal = refusal or invalid_answer(response, self._config, (*self._timers,))
            if refusal is None:
                await self._save(process, task, response)
                return
            settlement = settle(task, refusal, namespace=self._policies, now=self._now, spread=0.0)
            if not isinstance(settlement, Retry):
                assert isinstance(settlement, Fail | Break | Remove), "nothing is saved"
                task.error = settlement.error
                if isinstance(settlement, Remove):
                    # A rejected init creates no process.
                    self._clear()
                elif isinstance(settlement, Break):
                    self._break_by(settlement.error.message, timer, cancels=settlement.cancels)
                    process.corrupted_by = task.broken_by = task.task_id
                    self._breaking_task = task
                elif task.task_id == process.corrupted_by:
                    # It was run again: nothing is broken any more.
                    self._recover()
                await self._record(task, None)
                return
            task.attempt, task.tried_for = task.attempt + 1, settlement.tried_for
            # The timer of a process in error is what brings it back: nothing else runs before.
            if timer is not None and self.status is not ProcessStatus.ERROR:
                timer.due_at, timer.attempt = self._now + settlement.delay, task.attempt
                timer.tried_for = task.tried_for
                self._timers[timer.name] = timer
                return
            self._now += settlement.delay

    def _break_by(self, detail: str, timer: Timer | None = None, *, cancels: bool = True) -> None:
        """Set the process in error; its timers are held unless it `cancels`.

        `timer` is the one that broke the process.
        """
        process = self._enter(types_pb2.PROCESS_STATUS_ERROR)
        process.detail = detail
        self._breaking_task, self._breaking_timer = None, timer
        if cancels:
            self._timers = {}

    def _break_from_outside(self, detail: str) -> None:
        """Set the process in error without a step; `restart` sets its timers again."""
        suspended = self._timers
        self._break_by(detail)
        self._suspended_timers = suspended

    def _recover(self) -> None:
        """Set the process running."""
        self._enter(types_pb2.PROCESS_STATUS_RUNNING).detail = ""
        self._suspended_timers = {}

    def _resume(self, *, with_timer: bool) -> None:
        """Set a broken process running; `with_timer`: a timer that broke it is due now."""
        breaking_timer = self._breaking_timer
        self._recover()
        if breaking_timer is not None and with_timer:
            self._timers[breaking_timer.name] = breaking_timer.again(self._now)

    async def _restart(self) -> None:
        """Resume a broken process, and run a timer that broke it; set suspended ones again."""
        breaking_timer, suspended_timers = self._breaking_timer, self._suspended_timers
        self._resume(with_timer=True)
        if breaking_timer is not None:
            await self._run_timer(self._timers[breaking_timer.name])
        else:
            self._timers |= {name: it.again(self._now) for name, it in suspended_timers.items()}

    def _finish(self, result: bytes = b"", *, detail: str = "") -> None:
        """Finish the process and cancel its timers; `detail`: why, if not by a step."""
        self._timers, self._result = {}, result
        self._enter(types_pb2.PROCESS_STATUS_FINISHED).detail = detail

    async def _remove(self, *, by_request: bool = False) -> None:
        """Remove the process, its history and its timer."""
        self._clear()
        self._removed_by_request = by_request
        await self._observed(None)

    async def _observed(self, started: nodes_pb2.StartNodes | None) -> None:
        """Call the observer after a change."""
        if self._observer is not None:
            await self._observer(started)

    def _request(self, task: Task, process: types_pb2.Process) -> pb.ProcessRequest:
        request = pb.ProcessRequest(
            process=process,
            history=in_range(self._history, task.history_range, self._config.history_last),
            task=pb.ProcessorTask(
                task_id=task.task_id,
                type=TASK_TYPE_TO_WIRE[task.task_type],
                args=task.args,
                attempt=task.attempt,
                token=task.task_id * 1_000 + task.attempt,
                scheduled_at=instant_to_wire(task.scheduled_at),
                caller_context=task.context,
                nodes=[outcome_to_wire(it, self._codec) for it in task.nodes],
                timer_name=task.timer_name,
                memos=task.memos,
                reply=task.reply,
                sender=optional(SENDER.message, task.sender),
            ),
            deadline=instant_to_wire(self._now + self._config.step_timeout),
            epoch=1,
        )
        # A copy, so that a handler cannot change the process through the request.
        return pb.ProcessRequest.FromString(request.SerializeToString())

    async def _save(
        self, process: types_pb2.Process, task: Task, response: pb.ProcessResponse
    ) -> None:
        for event in response.events:
            process.last_event_id += 1
            event_id = process.last_event_id
            self._history.append(recorded(event, event_id, task_id=task.task_id, at=self._now))
        if response.HasField("aux_state"):
            process.aux_state = response.aux_state
            process.state_version = response.state_version
        if response.HasField("metadata"):
            process.metadata.CopyFrom(response.metadata)
        self._messages.add(response.messages, namespace=self._namespace, task_id=task.task_id)
        self._recover()
        match response.WhichOneof("action"):
            case "remove":
                self._clear()
            case "complete":
                self._finish(response.complete.result)
            case _:
                self._change_timers(task, response)
        self._breaking_timer = None
        task.response = response.response
        starts_nodes = response.HasField("start_nodes")
        await self._record(task, response.start_nodes if starts_nodes else None)

    def _change_timers(self, task: Task, response: pb.ProcessResponse) -> None:
        changes = timer_changes(response)
        for name, it in changes.items():
            self._timers.pop(name, None)
            if it is not None:
                due, task_id = due_at(it, self._now), next(self._task_ids)
                self._timers[name] = Timer(name=name, message=it, due_at=due, task_id=task_id)
        broken = self._breaking_timer if task.task_type is domain.TaskType.REPAIR else None
        if broken is not None and broken.name not in changes:
            again = dataclasses.replace(
                broken.again(self._now), task_id=next(self._task_ids), memos={}
            )
            self._timers[again.name] = again

    def _enter(self, status: types_pb2.ProcessStatus.ValueType) -> types_pb2.Process:
        process = self._process
        assert process is not None, "a settled task has a process"
        if process.status != status:
            process.previous_status, process.status = process.status, status
            process.status_changed_at.CopyFrom(instant_to_wire(self._now))
        process.ClearField("corrupted_by")
        return process

    def _clear(self) -> None:
        self._process = self._breaking_timer = None
        self._timers, self._suspended_timers = {}, {}
        self._history, self._result = [], b""
        self._removed_by_request = False

    async def _record(self, task: Task, started: nodes_pb2.StartNodes | None) -> None:
        error: TaskError | None = None
        if task.error is not None:
            error = TaskError(
                code=task.error.code, reason=task.error.reason, message=task.error.message
            )
        taken = TakenStep(
            task_id=task.task_id,
            type=TaskType(task.task_type),
            ended_at=self._now,
            attempt_count=task.attempt,
            response=self._codec.decode(task.response),
            error=error,
            rejected=task.error is not None and task.error.rejected,
            timer_name=task.timer_name,
        )
        self._steps.append(taken)
        await self._observed(started)
