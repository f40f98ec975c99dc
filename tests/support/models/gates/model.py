"""Gates as they should be, in memory: who waits for what, and who may pass.

Source: DESIGN, section 8. A task with constraints stands apart until nothing is in its way; then it
is *available*: it joins the line of its process, and its gates are held, all or none, until it has
ended or waits for a retry.

The model does not choose. It says what is in whose way, takes from storage whom that has let pass,
and says whether that was right:

- nothing was in the way of who has passed, and no gate has more holders than places for it;
- it has passed no task that could have gone in its stead and comes first: a task that could have
  run for longer than the starvation timeout, the oldest of them; then by priority; then by task id;
- no task is left that could pass.

What DESIGN leaves open, and the model therefore to storage:

- of several things in the way of a task, which one its row names;
- whether a starving task takes its place in the queue of its process while that has a
  step in hand, and which of its gates are reserved for it.
"""

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any

from progressor.domain.gates import constraint as rules
from progressor.domain.gates.constraint import Constraints, GatedState, GateHold, Order
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.settlement import Finish, Settlement
from progressor.domain.processes.task import TIMER_TYPES, TaskStatus, TaskType
from tests.support.models.processes import Model, ModelProcess, ModelTask
from tests.support.storage.gate_trace import Passed

STARVATION_TIMEOUT = dt.timedelta(seconds=60)
_GONE = frozenset({ProcessStatus.ERROR, ProcessStatus.FINISHED})


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Passage:
    """How far a task has come; ``attempts`` were behind it when it last began to wait.

    ``named`` is what of all that is in its way storage names. ``is_again``: it has broken its
    process, and has had its turn in its order.
    """

    run_at: dt.datetime | None
    ready_at: dt.datetime
    attempts: int = 0
    is_available: bool = False
    named: GatedState | None = None
    is_again: bool = False


class GatedModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.capacities: dict[str, int] = {}
        self.passages: dict[ModelTask, Passage] = {}
        self.kept: dict[ModelProcess, set[str]] = collections.defaultdict(set)
        """Gates that are held until the process ends."""
        self.unseen: dict[ModelProcess, set[str]] = collections.defaultdict(set)
        """Of these, what one has got and gone back since others of its process were looked at."""
        self.reserved: dict[ModelProcess, dict[str, int]] = {}
        """Gates, and the tasks for which they are."""

    # Deeds.

    def accept(self, process_id: str, task: ModelTask, *, run: bool, now: dt.datetime) -> bool:
        if task.constraints is None:
            return super().accept(process_id, task, run=run, now=now)
        if task.task_type is TaskType.INIT:
            self.processes[process_id] = ModelProcess(status=ProcessStatus.INIT)
        process = self.processes[process_id]
        process.add(task)
        self._constrain(process, task, task.constraints.run_at, now)
        self.look(process, now)
        return False

    def settle(
        self, process_id: str, settlement: Settlement, *, continues: bool, now: dt.datetime
    ) -> ModelTask | None:
        """Settle what runs; a worker does not go on by itself where gates are in it."""
        process = self.processes[process_id]
        was_gone = process.status in _GONE
        is_gated = self.is_gated(process) or _sets_gated_timer(settlement)
        following = super().settle(
            process_id, settlement, continues=continues and not is_gated, now=now
        )
        if process.status in _GONE and not was_gone:
            self.kept[process].clear()
        process.line.sort(key=_turn)
        if is_gated and process_id in self.processes:
            self._constrain_timer(process, now)
            self.look(process, now)
        return following

    def recover(self, process_id: str, now: dt.datetime, *, retries: bool) -> Verdict:
        verdict = super().recover(process_id, now, retries=retries)
        if verdict is Verdict.ACCEPTED:
            process = self.processes[process_id]
            again = process.broken_by
            if again is not None and again.constraints is not None:
                run_at = now if again.task_type in TIMER_TYPES else again.constraints.run_at
                self._constrain(process, again, run_at, now, is_again=True)
            self.look(process, now)
        return verdict

    def cancel(self, process_id: str, task: ModelTask, now: dt.datetime) -> None:
        process = self.processes[process_id]
        super().cancel(process_id, task, now)
        if process_id in self.processes:
            self._line_up(process, now)
            self.look(process, now)

    def terminate(self, process_id: str, reason: str) -> None:
        super().terminate(process_id, reason)
        self.kept[self.processes[process_id]].clear()
        self.unseen[self.processes[process_id]].clear()

    def remove(self, process_id: str) -> ModelProcess | None:
        process = super().remove(process_id)
        if process is not None:
            self.kept.pop(process, None)
        return process

    def set_gate(self, gate: str, capacity: int, now: dt.datetime) -> None:
        """Set a capacity; where it is too small, those give way who do not run yet.

        First who has the gate reserved, then who waits for a worker, the youngest first.
        """
        self.capacities[gate] = capacity
        for reserved in self.reserved.values():
            if self.held(gate) > capacity:
                reserved.pop(gate, None)
        available = [
            (process, task)
            for process, task in self.gated()
            if self.passages[task].is_available
            and task is not process.running
            and gate in self.wants(task)
            and gate not in self.kept[process]
        ]
        available.sort(key=lambda each: (self.passages[each[1]].ready_at, _id(each[1])))
        while available and self.held(gate) > capacity:
            process, task = available.pop()
            self._set_apart(process, task, now)
            self.unseen[process].clear()

    def look(self, process: ModelProcess, now: dt.datetime) -> None:
        """Take out of the line of a process what waits for a retry, or is not the first in it."""
        for task in self.gated_of(process):
            passage = self.passages[task]
            if not passage.is_available or task is process.running:
                continue
            is_later = task.due_at is not None and task.due_at > now
            if task.attempt > passage.attempts or is_later:
                passage.run_at, passage.attempts = task.due_at, task.attempt
                self._set_apart(process, task, now)
        self._step_back(process, now)
        self.unseen[process].clear()
        if process.status in _GONE and not self._available(process):
            self.kept[process].clear()

    def look_at_all_that_is_due(self, now: dt.datetime) -> None:
        for process in self.processes.values():
            if any(self._has_come(task, now) for task in process.apart):
                self.look(process, now)

    def reserve(self, reserved: dict[str, dict[str, int]]) -> None:
        self.reserved = {self.processes[name]: gates for name, gates in reserved.items()}

    def pass_on(self, task: ModelTask, now: dt.datetime) -> None:
        process = self.process_of(task)
        self.passages[task].is_available = True
        process.apart.remove(task)
        if _constraints(task).hold is GateHold.PROCESS:
            self.kept[process] |= self.wants(task)
        if task.task_type in TIMER_TYPES:
            process.add_timer(task)
            task.due_at = now
        else:
            process.line.append(task)
            process.line.sort(key=_turn)
        self._line_up(process, now)
        self._step_back(process, now)

    def keep(self, trace: Iterable[Passed]) -> None:
        """Note who has passed for its process, also if it has gone back in the same deed."""
        for passage in trace:
            task = self.find(passage.task_id)
            if _constraints(task).hold is GateHold.PROCESS:
                process, gates = self.process_of(task), self.wants(task)
                self.kept[process] |= gates
                self.unseen[process] |= set() if self.passages[task].is_available else gates

    # Facts.

    def gated(self) -> Iterator[tuple[ModelProcess, ModelTask]]:
        for process in self.processes.values():
            for task in self.gated_of(process):
                yield process, task

    def gated_of(self, process: ModelProcess) -> list[ModelTask]:
        return [
            task
            for task in process.tasks
            if task.constraints is not None and task in self.passages and not task.has_ended
        ]

    def apart(self) -> list[tuple[ModelProcess, ModelTask]]:
        return [(process, task) for process, task in self.gated() if task in process.apart]

    def name_of(self, process: ModelProcess) -> str:
        return next(name for name, each in self.processes.items() if each is process)

    def process_of(self, task: ModelTask) -> ModelProcess:
        return next(process for process, each in self.gated() if each is task)

    def find(self, task_id: int) -> ModelTask:
        return next(task for _, task in self.gated() if task.task_id == task_id)

    def is_gated(self, process: ModelProcess) -> bool:
        broken_by = process.broken_by
        breaker_is_gated = (
            broken_by is not None
            and broken_by.task_type in TIMER_TYPES
            and broken_by.constraints is not None
        )
        return bool(self.gated_of(process) or self.holds(process)) or breaker_is_gated

    def wants(self, task: ModelTask) -> set[str]:
        return set(_constraints(task).gates)

    def holds(self, process: ModelProcess) -> set[str]:
        """Return the gates that a process holds; it has one task at a time."""
        own = set(self.kept[process])
        for task in self._available(process):
            own |= self.wants(task)
        return own

    def held(self, gate: str) -> int:
        return sum(
            gate in self.kept[process]
            or gate in self.reserved.get(process, {})
            or gate in self.holds(process)
            for process in self.processes.values()
        )

    def has_waited_long(self, task: ModelTask, now: dt.datetime) -> bool:
        return self.passages[task].ready_at <= now - STARVATION_TIMEOUT

    def in_the_way(
        self, process: ModelProcess, task: ModelTask, now: dt.datetime
    ) -> frozenset[GatedState]:
        run_at = self.passages[task].run_at
        is_behind = self._is_behind(process, task, now) or self.older_in_line(process, task)
        return rules.waits(
            {gate: self.capacities[gate] - self.held(gate) for gate in self.wants(task)},
            own=self.own(process, task),
            is_due=run_at is None or run_at <= now,
            is_ordered=not self.smaller_versions(task),
            is_next=process.running is None and not is_behind,
        )

    def smaller_versions(self, task: ModelTask) -> list[tuple[ModelProcess, ModelTask]]:
        order = self.order_of(task)
        return [
            (process, other)
            for process, other in self.gated()
            if order is not None and order.waits_for(self.order_of(other))
        ]

    def order_of(self, task: ModelTask) -> Order | None:
        return None if self.passages[task].is_again else _constraints(task).order

    def older_in_line(self, process: ModelProcess, task: ModelTask) -> list[ModelTask]:
        """Return the older calls of its process that stand in line for the same gates."""
        return [
            other
            for other in process.apart
            if self.passages[other].named is GatedState.GATES
            and TIMER_TYPES.isdisjoint({task.task_type, other.task_type})
            and _id(other) < _id(task)
            and self.wants(other) == self.wants(task)
        ]

    def before(self, process: ModelProcess, task: ModelTask) -> list[ModelTask]:
        """Return who keeps a task from its process, at rest and not being in its line."""
        starts = [
            other
            for other in process.apart
            if other.task_type is TaskType.INIT and other is not task
        ]
        return starts + self.older_in_line(process, task)

    def own(self, process: ModelProcess, task: ModelTask) -> set[str]:
        """Return the gates that do not hinder a task: its process has them, unused.

        What is reserved for another of its process it may come to use too, but only if it is the
        first of its line when that is looked at: so far that gate is full. So is what its process
        has got by another that has gone back: when who took its turn has ended, that is looked at.
        """
        used = {gate for other in self._available(process) for gate in self.wants(other)}
        return (self.kept[process] - used - self.unseen[process]) | self.reserved_for(process, task)

    def reserved_for(self, process: ModelProcess, task: ModelTask | None = None) -> set[str]:
        return {
            gate
            for gate, task_id in self.reserved.get(process, {}).items()
            if task is None or task_id == task.task_id
        }

    def full(self, task: ModelTask, own: set[str]) -> set[str]:
        return {gate for gate in self.wants(task) - own if self.held(gate) >= self.capacities[gate]}

    # What is right.

    def assert_may_pass(self, task: ModelTask, now: dt.datetime) -> None:
        process = self.process_of(task)
        run_at = self.passages[task].run_at
        assert run_at is None or run_at <= now, "before its time"
        assert not self.smaller_versions(task), "before a smaller version"
        assert not self._is_behind(process, task, now), "out of turn"
        may_stand_behind = self.has_waited_long(task, now) and task.task_type not in TIMER_TYPES
        assert process.running is None or may_stand_behind, "two tasks of a process"

    def assert_passages(
        self, trace: Iterable[Passed], now: dt.datetime, *, by_rank: bool = True
    ) -> None:
        for passage in trace:
            task = self.find(passage.task_id)
            assert self.wants(task) <= passage.holders, "some of its gates, and not all"
            self._assert_version(task, passage)
            if by_rank:
                self._assert_rank(task, passage, now)

    def _assert_version(self, task: ModelTask, passage: Passed) -> None:
        order = self.order_of(task)
        smaller = [
            other.task_id
            for process in self.processes.values()
            for other in process.tasks
            if order is not None
            and other.task_id in passage.states
            and other.constraints is not None
            and order.waits_for(self.order_of(other))
        ]
        assert smaller == [], f"{task.task_id} of {order} has passed {smaller}"

    def _assert_rank(self, task: ModelTask, passage: Passed, now: dt.datetime) -> None:
        """Assert that no task was passed that could have gone instead and comes first.

        That is one who stood in line for gates that all had a place, and did not get them: a place
        that it lacks was taken before its eyes. Nothing but gates is in its way now, and nothing
        has happened in its process since.
        """
        for process, waiting in self.apart():
            name = self.name_of(process)
            has = passage.has(name, _id(waiting)) - self._used(process, passage)
            lacks = self.wants(waiting) - has
            could_go = (
                passage.states.get(_id(waiting)) == GatedState.GATES
                and name not in passage.stirred
                and all(passage.held(gate) < self.capacities[gate] for gate in lacks)
                and self.in_the_way(process, waiting, now) == {GatedState.GATES}
            )
            assert (
                not could_go
                or not lacks & passage.taken
                or self.rank(task, now) <= self.rank(waiting, now)
            ), (
                f"{task.task_id}, wanting {self.wants(task)}, has passed {waiting.task_id},"
                f" wanting {self.wants(waiting)}"
            )

    def _used(self, process: ModelProcess, passage: Passed) -> set[str]:
        """Return what tasks of a process that were available went on with."""
        return {
            gate
            for other in self.gated_of(process)
            if passage.states.get(_id(other)) == GatedState.AVAILABLE
            for gate in self.wants(other)
        }

    def rank(self, task: ModelTask, now: dt.datetime) -> tuple[Any, ...]:
        """Return what tasks are let pass by: the smaller first."""
        ready_at, priority = self.passages[task].ready_at, _constraints(task).priority
        return rules.rank(priority, ready_at, _id(task), starving_since=now - STARVATION_TIMEOUT)

    def _constrain_timer(self, process: ModelProcess, now: dt.datetime) -> None:
        for timer in tuple(process.timers):
            if timer.constraints is not None and timer not in self.passages:
                self._constrain(process, timer, timer.due_at, now)

    def _constrain(
        self,
        process: ModelProcess,
        task: ModelTask,
        run_at: dt.datetime | None,
        now: dt.datetime,
        *,
        is_again: bool = False,
    ) -> None:
        for gate, capacity in _constraints(task).gates.items():
            self.capacities.setdefault(gate, 1 if capacity is None else capacity)
        self.passages[task] = Passage(
            run_at=run_at, ready_at=max(now, run_at or now), is_again=is_again
        )
        self._set_apart(process, task, now)

    def _set_apart(self, process: ModelProcess, task: ModelTask, now: dt.datetime) -> None:
        process.drop(task)
        process.apart.append(task)
        task.status, task.due_at = TaskStatus.WAITING, None
        self.passages[task].is_available = False
        self._line_up(process, now)

    def _line_up(self, process: ModelProcess, now: dt.datetime) -> None:
        """See to it that the first in line is due and nothing else, if no step is in hand."""
        is_new = process.status is ProcessStatus.INIT
        ready = [task for task in process.line if task.task_type is TaskType.INIT or not is_new]
        first = None if process.running is not None else next(iter(ready), process.timer)
        for task in process.line:
            task.due_at = (task.due_at or now) if task is first else None
        for timer in process.timers:
            timer.status = TaskStatus.WAITING if timer is first else TaskStatus.BLOCKED

    def _hold(self, process: ModelProcess, *, cancels: bool) -> None:
        super()._hold(process, cancels=cancels)
        for task in process.apart:
            self.passages[task].is_available = False
            task.status, task.due_at = TaskStatus.WAITING, None

    def _step_back(self, process: ModelProcess, now: dt.datetime) -> None:
        """Set those apart that are available and not the first in the line of their process."""
        first = next(iter(process.line), process.timer)
        for task in (*process.line, *process.timers):
            if task is not first and task in self.passages and self.passages[task].is_available:
                self._set_apart(process, task, now)
                if _constraints(task).hold is GateHold.PROCESS:
                    self.unseen[process] |= self.wants(task)

    def _available(self, process: ModelProcess) -> list[ModelTask]:
        return [task for task in self.gated_of(process) if self.passages[task].is_available]

    def _has_come(self, task: ModelTask, now: dt.datetime) -> bool:
        passage = self.passages[task]
        waits = passage.named is GatedState.TIME
        return waits and passage.run_at is not None and passage.run_at <= now

    def _is_behind(self, process: ModelProcess, task: ModelTask, now: dt.datetime) -> bool:
        """Tell whether another task of the process comes first that is in line."""
        if process.status is ProcessStatus.INIT and task.task_type is not TaskType.INIT:
            return True
        if process.status is ProcessStatus.ERROR and task is not process.broken_by:
            return True
        if task.task_type in TIMER_TYPES:
            timer = process.timer
            is_due = timer is not None and timer.due_at is not None and timer.due_at <= now
            return bool(process.line) or is_due
        return any(_id(other) < _id(task) or _has_begun(other) for other in process.line)


def _constraints(task: ModelTask) -> Constraints:
    assert task.constraints is not None, "it carries none"
    return task.constraints


def _id(task: ModelTask) -> int:
    """Return a task's id; the newest, of which it is not known yet, comes last."""
    return 2**63 if task.task_id is None else task.task_id


def _has_begun(task: ModelTask) -> bool:
    return task.attempt > 0 and task.due_at is not None


def _turn(task: ModelTask) -> tuple[bool, int]:
    """Return what the line of a process is sorted by: who waits for its retry keeps its turn."""
    return (not _has_begun(task), _id(task))


def _sets_gated_timer(settlement: Settlement) -> bool:
    return isinstance(settlement, Finish) and any(
        isinstance(it, SetTimer) and it.constraints is not None
        for it in (settlement.intent.timer, *settlement.intent.timers.values())
    )
