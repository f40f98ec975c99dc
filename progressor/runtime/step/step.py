"""A step: one task from claimed to settled. Read this first.

    ask the processor  ->  decide what is written (domain)  ->  write it (fenced)  ->  report it

A worker continues with the task that the settlement returns as the next one on the same process
(the oldest waiting call, or a timer that is due). It already knows the process, and needs
neither a claim nor a read. If the process was a node of a job and has ended, the worker continues
with the first step of another node in its namespace. Where the namespace allows it, a worker that
continues asks for several calls of the process at once (`turns`).
"""

import asyncio
import dataclasses
import logging
from typing import assert_never

from progressor import errors
from progressor.domain.jobs.graph import NodePlan
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.event import Event
from progressor.domain.processes.intent import (
    TIMERS_MAX,
    Failed,
    Intent,
    Outcome,
    Released,
    RemoveProcess,
    Succeeded,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import NO_OPTIONS
from progressor.domain.processes.settlement import Settlement, settle
from progressor.domain.processes.task import TIMER_TYPES, RunningTask, TaskType
from progressor.domain.views.bulk import OPERATIONS
from progressor.processor.client import ProcessorClient
from progressor.processor.failures import INVALID_ANSWER
from progressor.runtime.core.context import Context
from progressor.runtime.core.leases import Ending, LeaseHandle, Leases
from progressor.runtime.core.rates import Rates
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.step.histories import StepHistories
from progressor.runtime.step.job_steps import JobSteps
from progressor.runtime.step.turns import Ahead, Turns
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.steps.settlements import Entry, LeaseLost, Settlements, Written
from progressor.telemetry.logs import fields as log_fields
from progressor.telemetry.traces.spans import UNTRACED, Span

_log = logging.getLogger(__name__)

STEPS_MAX = 32
"""Steps that a worker may run on one process while other tasks of its namespace wait for a slot."""

_INTERNAL = 13
_UNSTORABLE = Failed(
    code=_INTERNAL,
    reason=INVALID_ANSWER,
    message="PostgreSQL refuses to store a value of the answer; the engine's log has its words",
    retryable=False,
)
_TOO_MANY_TIMERS = Failed(
    code=_INTERNAL,
    reason=INVALID_ANSWER,
    message=f"timers: the process would have more than {TIMERS_MAX} timers",
    retryable=False,
)
_UNREADABLE = Failed(
    code=_INTERNAL,
    reason="HISTORY_UNREADABLE",
    message="PostgreSQL cannot read the history; its log has the reason",
    retryable=False,
)
_JOB_UNREADABLE = Failed(
    code=_INTERNAL,
    reason="JOB_UNREADABLE",
    message="PostgreSQL cannot read the job; its log has the reason",
    retryable=False,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    processor: ProcessorClient
    settlements: Settlements
    histories: StepHistories
    namespaces: Namespaces
    effects: EffectDispatcher
    job_steps: JobSteps
    turns: Turns
    leases: Leases
    rates: Rates
    context: Context

    async def run(self, task: RunningTask, slots: Slots) -> None:
        """Run a task, and those that follow, until a settlement returns none.

        If it is cancelled, the processor may have acted; a queued settlement is still written.
        """
        handle = self.leases.take(task)
        ahead = Ahead()
        steps = 0
        behind: int | None = None
        try:
            while True:
                steps += 1
                if handle.ending is None and not ahead.is_asked and slots.hands_back(task):
                    handle.ending = Ending.RELEASED
                self.context.measures.begun(task)
                is_long = steps + ahead.settled_count >= STEPS_MAX
                yields = is_long or slots.is_limited(task.key.namespace)
                yields = yields and slots.has_backlog(task.key.namespace)
                continues = not (yields or slots.draining)
                ahead.wanted = continues and behind is not None
                span = self.context.tracing.step(task, behind=behind)
                if span is UNTRACED:
                    following = await self._step(task, handle, span, ahead, continues=continues)
                else:
                    with span:
                        following = await self._step(task, handle, span, ahead, continues=continues)
                if following is None:
                    if yields:
                        # The backlog may be cleared by now, and the next task is due.
                        slots.mark_backlog(task.key.namespace)
                    return
                # The settlement of a leader, or of a node, may lease a task of another process.
                behind = task.task_id if following.key == task.key else None
                task = following
                self.leases.pass_on(handle, task)
        finally:
            self.leases.drop(handle)
            await ahead.close()

    async def _step(
        self, task: RunningTask, handle: LeaseHandle, span: Span, ahead: Ahead, *, continues: bool
    ) -> RunningTask | None:
        self.context.observers.tell(
            "claimed", task_id=task.task_id, key=task.key, attempt=task.attempt
        )
        namespace = await self._namespace(task)
        outcome = None
        if namespace is not None:
            outcome = await self._ask(task, handle, namespace, span, ahead)
        if namespace is None or outcome is None:
            if handle.ending is Ending.REVOKED:
                span.fail("LEASE_LOST")
                self.context.observers.tell("revoked", task_id=task.task_id, key=task.key)
            else:
                span.fail("ABANDONED")
                self._abandon(task)
            return None
        self.context.observers.tell("answered", task_id=task.task_id, key=task.key)
        if ahead.turn is not None:
            following = await self.turns.settle(task, outcome, ahead, namespace, self._decide)
            if following is not None:
                span.answered(outcome)
                return following
        plan = None
        if isinstance(outcome, Succeeded) and isinstance(outcome.intent.action, StartNodes):
            outcome, plan = await self._plan(task, outcome, outcome.intent.action)
        entry = Entry(
            key=task.key,
            task_id=task.task_id,
            task_type=task.task_type,
            attempt=task.attempt,
            token=task.token,
            settlement=self._decide(task, outcome, namespace),
            process=task.process,
            # The next one may be a timer.
            continues=continues
            and not self._is_paused(task)
            and self.rates.take_timers(namespace, 1, oldest=False) > 0,
            expires_after=self.context.lease_of(namespace),
            trace_context=task.trace_context,
            part=task.process.part,
            plan=plan,
            is_gated=task.spent is not None,
        )
        if span is UNTRACED:
            return await self._settle(entry, task, namespace, span)
        span.answered(outcome)
        with span.settle() as settling:
            context = span.context(task.trace_context)
            entry = dataclasses.replace(entry, trace_context=context, on_sent=settling.on_sent)
            return await self._settle(entry, task, namespace, settling)

    async def _settle(
        self, entry: Entry, task: RunningTask, namespace: Namespace, span: Span
    ) -> RunningTask | None:
        # Queued from here on: written even if this worker is cancelled.
        decided_at = self.context.clock.monotonic()
        try:
            written = await self.settlements.submit(entry)
        except errors.StorageRefusedError as refusal:
            # PostgreSQL rejects what `processor/codec.py` accepted: the processor's answer is at
            # fault, and must not stop anything but its own process.
            is_timers = isinstance(refusal, errors.TooManyTimersError)
            failure = _TOO_MANY_TIMERS if is_timers else _UNSTORABLE
            settlement = self._decide(task, failure, namespace)
            entry = dataclasses.replace(entry, settlement=settlement, plan=None)
            span.fail(failure.reason)
            try:
                written = await self.settlements.submit(entry)
            except errors.StorageRefusedError as error:
                # The cause is the process's own data: nothing can be written about it. The lease is
                # left to the scan for zombies, which retries at its own pace.
                facts = log_fields.of_process(task.key, task.trace_context)
                facts |= {"task_id": task.task_id, "why": str(error)}
                _log.error("step not settled", extra=facts)
                span.fail(error.reason)
                self._abandon(task)
                return None
        following = written.next if isinstance(written, Written) else None
        if entry.continues and (following is None or following.task_type not in TIMER_TYPES):
            self.rates.give_back_timers(namespace.name, 1)
        if isinstance(written, Written):
            self.context.measures.settled(entry, self.context.clock.monotonic() - decided_at)
            if span is not UNTRACED:
                span.settled(entry.settlement, written.next)
        else:
            span.fail("LEASE_LOST")
        return self._conclude(entry, task, written, namespace)

    async def _plan(
        self, task: RunningTask, outcome: Succeeded, action: StartNodes
    ) -> tuple[Outcome, NodePlan | None]:
        while True:
            try:
                return await self.job_steps.plan(task, outcome, action)
            except errors.StorageUnavailableError:
                await asyncio.sleep(1)
            except errors.StorageRefusedError:
                return _JOB_UNREADABLE, None

    def _is_paused(self, task: RunningTask) -> bool:
        return task.key.namespace in self.namespaces.pauses.names

    def _abandon(self, task: RunningTask) -> None:
        self.context.metrics.abandoned.add(1, (task.key.namespace, task.task_type))
        self.context.observers.tell("abandoned", task_id=task.task_id, key=task.key)

    def _decide(self, task: RunningTask, outcome: Outcome, namespace: Namespace) -> Settlement:
        return settle(
            task,
            outcome,
            namespace=namespace,
            # Elapsed time is counted on this replica's clock from a start on PostgreSQL's; clock
            # skew shifts only the time after which a retry gives up.
            now=self.context.clock.now(),
            spread=self.context.jitter(),
            options=NO_OPTIONS if task.process.part is None else task.process.part.options,
        )

    def _conclude(
        self,
        entry: Entry,
        task: RunningTask,
        written: Written | LeaseLost,
        namespace: Namespace,
    ) -> RunningTask | None:
        match written:
            case LeaseLost():
                self.context.metrics.fenced.add(1, (entry.key.namespace, entry.task_type))
                self.context.observers.tell("fenced", task_id=entry.task_id, key=entry.key)
                return None
            case Written():
                self.histories.settled(entry, task, written, namespace)
                self.effects.settled(entry, written)
                self.context.observers.tell(
                    "settled",
                    task_id=entry.task_id,
                    task_type=entry.task_type,
                    key=entry.key,
                    settlement=type(entry.settlement).__name__,
                )
                return written.next
            case _:
                assert_never(written)

    async def _namespace(self, task: RunningTask) -> Namespace | None:
        """Return the task's namespace; waits for PostgreSQL if it is not in memory.

        None: it was deleted, with the task's process, after the task was leased.
        """
        while True:
            try:
                return await self.namespaces.lookup(task.key.namespace)
            except errors.NamespaceNotFoundError:
                return None
            except errors.StorageUnavailableError:
                await asyncio.sleep(1)

    async def _ask(
        self,
        task: RunningTask,
        handle: LeaseHandle,
        namespace: Namespace,
        span: Span,
        ahead: Ahead,
    ) -> Outcome | None:
        """Return the outcome of the attempt; None if the lease was abandoned meanwhile."""
        if handle.ending is None:
            if task.task_type is TaskType.REMOVE:
                return Succeeded(Intent(action=RemoveProcess()))
            handle.asking = worker = asyncio.current_task()
            try:
                if namespace.name == OPERATIONS:
                    return await self.job_steps.bulk_steps.run(task)
                if ahead.is_asked:
                    known = await self.turns.resume(task, ahead)
                    if known is not None:
                        return known
                return await self._ask_processor(task, namespace, span, ahead)
            except asyncio.CancelledError:
                # Uncancelled only if the handle cancelled it.
                if handle.asking is not None or worker is None or worker.uncancel() > 0:
                    raise
            finally:
                handle.asking = None
        return Released() if handle.ending is Ending.RELEASED else None

    async def _ask_processor(
        self, task: RunningTask, namespace: Namespace, span: Span, ahead: Ahead
    ) -> Outcome:
        try:
            if task.process.part is not None:
                handed = await self.job_steps.handed(task, task.process.part)
                if not isinstance(handed, RunningTask):
                    return handed
                task = handed
            if task.has_memos:
                remembering = await self.histories.with_memos(task)
                if remembering is None:
                    # Its process has ended since the claim, and the memos with it: a processor
                    # that was asked without them would do again what they stand for.
                    return Released()
                task = remembering
            history = await self.histories.read(task, namespace)
        except errors.StorageUnavailableError:
            # The processor needs the history. The settlement waits for PostgreSQL and releases the
            # task; this attempt does not count.
            return Released()
        except errors.StorageRefusedError:
            return _UNREADABLE
        if isinstance(history, Failed):
            return history
        return await self._send(task, history, namespace, span, ahead)

    async def _send(
        self,
        task: RunningTask,
        history: tuple[Event, ...],
        namespace: Namespace,
        span: Span,
        ahead: Ahead,
    ) -> Outcome:
        if ahead.wanted and namespace.turn_max > 1:
            asked = await self.turns.ask(task, history, namespace, ahead)
            if asked is not None:
                return asked
        timeout = task.step_timeout or namespace.step_timeout
        asked_at = self.context.clock.monotonic()
        if span is UNTRACED:
            outcome = await self.processor.ask(task, history, namespace=namespace, timeout=timeout)
        else:
            with span.call() as call:
                outcome = await self.processor.ask(
                    call.with_context(task), history, namespace=namespace, timeout=timeout
                )
                call.answered(outcome)
        if isinstance(outcome, Released):
            return outcome
        self.context.measures.answered(task, outcome, self.context.clock.monotonic() - asked_at)
        return outcome
