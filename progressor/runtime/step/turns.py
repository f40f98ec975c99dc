"""Turns: waiting calls of a process that are asked together and settled in one transaction.

Each step of a process waits for the commit of the one before, which bounds a process that many call
at once. In a namespace that allows turns, a worker that goes on with such a process also asks for
the calls behind its task, as many as `turn_max` allows. The processor runs them one after the
other, each on the process as the one before left it. What must hold:

- The calls are settled in the order of their ids, each with its own outcome, or not at all.
- What is settled is always a prefix of the turn, together with all that the processor saw of it.
- A step is settled under a lease. The steps before the last share that of the first; the
  transaction that settles them moves it to the last (`storage/steps/turns`), whose outcome may
  be any and is settled by itself.
- A turn ends with a step whose outcome is more than events, state and a response, or is a failure:
  the processor runs none behind it, and they are asked again.
- A timer that is due at once is in no turn: its task has neither id nor token before the step that
  sets it is settled.
- If the line has changed since it was read, since a call of it was cancelled, only the first step
  is settled, and the others are asked again.
- Nobody waits for a slow step of another call for longer than TURN_SECONDS. By then, or when a step
  asks for something that takes a lease of its own, such as `once`, what is done is settled and
  the lease moves to that step while it runs.
"""

import dataclasses
from collections.abc import Callable

from progressor import errors
from progressor.domain.processes.event import Event
from progressor.domain.processes.intent import (
    TURN_SECONDS,
    Outcome,
    Released,
    continues_turn,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import Settlement
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.processor.client import AskedTurn, ProcessorClient
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.step.histories import StepHistories
from progressor.storage.steps import turns as storage
from progressor.storage.steps.settlements import Entry, LeaseLost
from progressor.telemetry.traces.spans import UNTRACED

_TYPES = frozenset({TaskType.CALL, TaskType.NOTIFY})

Decide = Callable[[RunningTask, Outcome, Namespace], Settlement]


@dataclasses.dataclass(slots=True)
class Ahead:
    """What one worker has asked ahead: the turn, or the outcome of the task that it goes on with.

    ``wanted``: it may ask ahead, since it goes on with its process. ``settled_count`` counts the
    steps that turns have settled.
    """

    wanted: bool = False
    turn: AskedTurn | None = None
    known: Outcome | None = None
    settled_count: int = 0

    @property
    def is_asked(self) -> bool:
        """Whether the next task runs already, or has run."""
        return self.turn is not None or self.known is not None

    async def close(self) -> None:
        """Give up what is asked and not answered."""
        self.known = None
        if self.turn is not None:
            turn, self.turn = self.turn, None
            await turn.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    processor: ProcessorClient
    stored: storage.Turns
    histories: StepHistories
    effects: EffectDispatcher
    context: Context

    async def ask(
        self, task: RunningTask, history: tuple[Event, ...], namespace: Namespace, ahead: Ahead
    ) -> Outcome | None:
        """Ask for a task and those behind it, and return its outcome; None: ask for it alone."""
        if not _may_begin(task):
            return None
        try:
            ahead.turn = await self.processor.ask_turn(
                task,
                history,
                lambda: self.stored.line(task, namespace.turn_max - 1),
                namespace=namespace,
                timeout=namespace.step_timeout,
            )
        except errors.StorageError:
            return None
        return await self.resume(task, ahead)

    async def resume(self, task: RunningTask, ahead: Ahead) -> Outcome | None:
        """Return the outcome of a task that was asked ahead; None: it was not, or has not begun."""
        if ahead.known is not None:
            known, ahead.known = ahead.known, None
            return known
        if ahead.turn is None:
            return None
        since = self.context.clock.monotonic()
        outcome = await ahead.turn.outcome()
        if outcome is None:
            await ahead.close()
        elif not isinstance(outcome, Released):
            seconds = self.context.clock.monotonic() - since
            self.context.measures.answered(task, outcome, seconds)
        return outcome

    async def settle(
        self,
        task: RunningTask,
        outcome: Outcome,
        ahead: Ahead,
        namespace: Namespace,
        decide: Decide,
    ) -> RunningTask | None:
        """Settle what the turn has done, but for its last step, and return that step's task.

        None: nothing was settled, and the task is to be settled alone.
        """
        steps, last = await self._collect(task, outcome, ahead)
        if not steps:
            return None
        turn, tasks = self._turn_of(steps, last, namespace, decide)
        decided_at = self.context.clock.monotonic()
        try:
            written = await self.stored.submit(turn)
        except errors.StorageRefusedError:
            written = LeaseLost()
        if isinstance(written, LeaseLost):
            await ahead.close()
            return None
        seconds = self.context.clock.monotonic() - decided_at
        if ahead.turn is not None:
            ahead.turn.take_lease()
        ahead.settled_count += len(tasks)
        for begun, entry, each in zip(tasks, turn.steps, written, strict=True):
            self.context.measures.settled(entry, seconds)
            self.histories.settled(entry, begun, each, namespace)
            self.effects.settled(entry, each)
            self.context.observers.tell(
                "settled",
                task_id=entry.task_id,
                task_type=entry.task_type,
                key=entry.key,
                settlement=type(entry.settlement).__name__,
            )
        settled_at = written[-1].settled_at
        return dataclasses.replace(
            turn.following, started_at=settled_at, first_started_at=settled_at
        )

    async def _collect(
        self, task: RunningTask, outcome: Outcome, ahead: Ahead
    ) -> tuple[list[tuple[RunningTask, Outcome]], RunningTask]:
        """Return the steps that are done, and the last task: it is done too, or it runs."""
        done = [(task, outcome)]
        clock, turn = self.context.clock, ahead.turn
        until = clock.monotonic() + TURN_SECONDS
        while turn is not None and continues_turn(done[-1][1]):
            following, since = turn.following, clock.monotonic()
            if following is None:
                break
            if not await turn.is_answered(until - since):
                return done, following
            found = await turn.outcome()
            if found is None or isinstance(found, Released):
                break
            self.context.measures.answered(following, found, clock.monotonic() - since)
            done.append((following, found))
        last, known = done.pop()
        await ahead.close()
        if done:
            ahead.known = known
        return done, last

    def _turn_of(
        self,
        steps: list[tuple[RunningTask, Outcome]],
        last: RunningTask,
        namespace: Namespace,
        decide: Decide,
    ) -> tuple[storage.Turn, list[RunningTask]]:
        process, entries, tasks = steps[0][0].process, [], []
        for place, (each, outcome) in enumerate(steps):
            task = dataclasses.replace(each, process=process)
            if place:
                self._trace(task, outcome, behind=steps[place - 1][0].task_id)
            settlement = decide(task, outcome, namespace)
            entries.append(
                Entry(
                    key=task.key,
                    task_id=task.task_id,
                    task_type=task.task_type,
                    attempt=task.attempt,
                    token=task.token,
                    settlement=settlement,
                    process=process,
                    continues=True,
                    expires_after=self.context.lease_of(namespace),
                    trace_context=task.trace_context,
                )
            )
            tasks.append(task)
            process = storage.process_after(process, settlement)
        following = dataclasses.replace(last, process=process)
        return storage.Turn(steps=entries, following=following), tasks

    def _trace(self, task: RunningTask, outcome: Outcome, *, behind: int) -> None:
        """Record the span of a step that was asked ahead; it begins when its turn is settled."""
        tell = self.context.observers.tell
        tell("claimed", task_id=task.task_id, key=task.key, attempt=task.attempt)
        tell("answered", task_id=task.task_id, key=task.key)
        span = self.context.tracing.step(task, behind=behind)
        if span is not UNTRACED:
            with span:
                span.answered(outcome)


def _may_begin(task: RunningTask) -> bool:
    """Whether a task can be the first of a turn: one that needs nothing special."""
    process = task.process
    return (
        task.task_type in _TYPES
        and task.attempt == 1
        and process.status is ProcessStatus.RUNNING
        and process.part is None
        and task.spent is None
        and task.history_range is None
        and task.step_timeout is None
    )
