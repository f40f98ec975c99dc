"""Storage as it should be, in memory: what each operation answers, and what the tables then hold.

It knows nothing of batches, locks or replicas. Ids are PostgreSQL's: a task that storage has not
told the id of (a timer set aside) is without one until `adopt`.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterator

from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.admission import Verdict, decide
from progressor.domain.processes.intent import Complete, KeepTimer, SetTimer, UnsetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.reply import End
from progressor.domain.processes.settlement import Break, Fail, Finish, Remove, Retry, Settlement
from progressor.domain.processes.task import FINAL_STATUSES, TIMER_TYPES, TaskStatus, TaskType


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class ModelTask:
    """A task; ``due_at`` None: it is behind another, or waits for its constraints."""

    task_id: int | None
    task_type: TaskType
    status: TaskStatus = TaskStatus.WAITING
    attempt: int = 0
    due_at: dt.datetime | None = None
    idempotency_key: str | None = None
    args: bytes = b""
    error_reason: str | None = None
    response: bytes | None = None
    constraints: Constraints | None = None
    is_acknowledged: bool = False
    tried_for: dt.timedelta = dt.timedelta()
    memos: set[str] = dataclasses.field(default_factory=set)
    timer_name: str = ""

    def end(self, status: TaskStatus, reason: str | None = None) -> None:
        assert not self.has_ended
        self.status, self.error_reason, self.due_at = status, reason, None
        if status is TaskStatus.CANCELLED and self.attempt == 0:
            self.idempotency_key = None

    @property
    def is_held_on_error(self) -> bool:
        has_begun = self.attempt > 0 or bool(self.memos)
        return self.is_acknowledged or has_begun or self.task_type in TIMER_TYPES

    @property
    def has_ended(self) -> bool:
        return self.status in FINAL_STATUSES


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class ModelProcess:
    """A process: one task runs, calls stand in line, timers stand by, each with a name.

    What waits for its constraints stands apart: in ``apart``, and in nothing else. What waited when
    the process broke, and was not cancelled, is ``held``.
    """

    status: ProcessStatus
    detail: str | None = None
    broken_by: ModelTask | None = None
    event_count: int = 0
    aux_state: bytes = b""
    state_version: int = 0
    running: ModelTask | None = None
    line: list[ModelTask] = dataclasses.field(default_factory=list)
    timers: list[ModelTask] = dataclasses.field(default_factory=list)
    apart: list[ModelTask] = dataclasses.field(default_factory=list)
    held: list[ModelTask] = dataclasses.field(default_factory=list)
    tasks: list[ModelTask] = dataclasses.field(default_factory=list)

    @property
    def timer(self) -> ModelTask | None:
        """The earliest timer; of those due at one instant, the one that was set first."""
        order = [id(task) for task in self.tasks]
        return min(self.timers, key=lambda it: (it.due_at, order.index(id(it))), default=None)

    def waiting(self) -> Iterator[ModelTask]:
        yield from self.line
        yield from self.timers
        yield from self.apart
        yield from self.held

    def add_timer(self, task: ModelTask) -> None:
        """Let a timer stand by."""
        names = [it.timer_name for it in self.waiting() if it.task_type in TIMER_TYPES]
        assert task.timer_name not in names, f"a process has two timers named {task.timer_name!r}"
        self.timers.append(task)

    def drop(self, task: ModelTask) -> None:
        """Take out what waits, wherever it does."""
        for place in (self.line, self.timers, self.apart, self.held):
            place[:] = [other for other in place if other is not task]

    def take_timer(self, name: str) -> ModelTask | None:
        timers = (it for it in (*self.timers, *self.apart) if it.task_type in TIMER_TYPES)
        timer = next((it for it in timers if it.timer_name == name), None)
        if timer is not None:
            self.drop(timer)
        return timer

    def add(self, task: ModelTask) -> ModelTask:
        self.tasks.append(task)
        return task

    def find(self, task_id: int) -> ModelTask:
        return next(task for task in self.tasks if task.task_id == task_id)

    def known(self, idempotency_key: str | None) -> ModelTask | None:
        named = (task for task in self.tasks if task.idempotency_key == idempotency_key)
        return None if idempotency_key is None else next(named, None)


class Model:
    def __init__(self) -> None:
        self.processes: dict[str, ModelProcess] = {}

    def admit(
        self,
        process_id: str,
        task_type: TaskType,
        args: bytes,
        key: str | None,
        constraints: Constraints | None = None,
    ) -> tuple[Verdict, ModelTask | None]:
        process = self.processes.get(process_id)
        known = process.known(key) if process is not None else None
        if known is not None:
            request = (task_type, args, constraints)
            same = (known.task_type, known.args, known.constraints) == request
            return (Verdict.DUPLICATE, known) if same else (Verdict.KEY_REUSED, None)
        return decide(task_type, None if process is None else process.status), None

    def accept(self, process_id: str, task: ModelTask, *, run: bool, now: dt.datetime) -> bool:
        if task.task_type is TaskType.INIT:
            self.processes[process_id] = ModelProcess(status=ProcessStatus.INIT)
        process = self.processes[process_id]
        is_free = process.running is None and not process.line
        if process.status is ProcessStatus.INIT and task.task_type is not TaskType.INIT:
            is_free = False
        process.add(task)
        for timer in process.timers:
            timer.status = TaskStatus.BLOCKED
        if is_free and run:
            self._run(process, task)
        else:
            process.line.append(task)
            task.due_at = now if is_free else None
        return is_free

    def due(self, now: dt.datetime) -> dict[int, ModelProcess]:
        return {
            task.task_id: process
            for process in self.processes.values()
            for task in process.waiting()
            if task.task_id is not None
            and task.status is TaskStatus.WAITING
            and task.due_at is not None
            and task.due_at <= now
        }

    def claim(self, process: ModelProcess, task_id: int) -> ModelTask:
        task = process.find(task_id)
        assert process.running is None, "two tasks of a process run"
        process.drop(task)
        self._run(process, task)
        return task

    def settle(
        self, process_id: str, settlement: Settlement, *, continues: bool, now: dt.datetime
    ) -> ModelTask | None:
        process = self.processes[process_id]
        task, process.running = process.running, None
        assert task is not None, "nothing runs"
        match settlement:
            case Remove():
                del self.processes[process_id]
                return None
            case Finish():
                self._finish(process, task, settlement, now)
            case Fail(error):
                task.end(TaskStatus.ERROR, error.reason)
                if task is process.broken_by:
                    self._recover(process)
            case Break(error):
                task.end(TaskStatus.ERROR, error.reason)
                self._break(process, task, settlement)
            case Retry():
                task.status, task.attempt = TaskStatus.WAITING, settlement.attempt_count
                task.due_at, task.tried_for = now + settlement.delay, settlement.tried_for
                task.error_reason = (
                    settlement.error.reason if settlement.error is not None else None
                )
                if task.task_type in TIMER_TYPES:
                    process.add_timer(task)
                else:
                    process.line.insert(0, task)
                    return None
        retried = task if isinstance(settlement, Retry) else None
        return self._go_on(process, retried, continues=continues, now=now)

    def recover(self, process_id: str, now: dt.datetime, *, retries: bool) -> Verdict:
        process = self.processes.get(process_id)
        if process is None:
            return Verdict.PROCESS_NOT_FOUND
        if process.status is ProcessStatus.FINISHED:
            return Verdict.PROCESS_FINISHED
        task = process.broken_by
        busy = process.running is not None or process.line or process.timers
        is_again = task is not None and not task.has_ended
        if process.status is not ProcessStatus.ERROR or busy or is_again:
            return Verdict.PROCESS_IS_RUNNING
        if retries and task is None:
            return Verdict.NOTHING_TO_RETRY
        if task is not None and (
            task.task_type in TIMER_TYPES or (retries and task.task_type is not TaskType.JOIN)
        ):
            task.status, task.attempt, task.due_at = TaskStatus.WAITING, 0, now
            task.tried_for = dt.timedelta()
            if task.task_type in TIMER_TYPES:
                process.add_timer(task)
            else:
                process.line.append(task)
        else:
            self._recover(process)
            self._go_on(process, None, continues=False, now=now)
        return Verdict.ACCEPTED

    def cancel(self, process_id: str, task: ModelTask, now: dt.datetime) -> None:
        """Cancel a task, which may run; with an init task that is not run again its process."""
        process = self.processes[process_id]
        if task.task_type is TaskType.INIT and task is not process.broken_by:
            self.remove(process_id)
            return
        self._end_one(process, task, "TASK_CANCELLED")
        process.drop(task)
        process.running = None if process.running is task else process.running
        if process.running is None:
            self._go_on(process, None, continues=False, now=now)

    def terminate(self, process_id: str, reason: str) -> None:
        process = self.processes[process_id]
        if process.running is not None:
            self._end_one(process, process.running, "PROCESS_FINISHED")
            process.running = None
        self._cancel(process, "PROCESS_FINISHED")
        process.status, process.detail, process.broken_by = ProcessStatus.FINISHED, reason, None

    def end_of(self, process_id: str) -> End | None:
        """Return how a process has ended; in error it has only while nothing brings it back."""
        process = self.processes[process_id]
        if process.status is ProcessStatus.FINISHED:
            return End.FINISHED if process.detail is None else End.TERMINATED
        recovers = process.running is not None or bool(process.line or process.timers)
        recovers = recovers or (process.broken_by is not None and not process.broken_by.has_ended)
        return End.FAILED if process.status is ProcessStatus.ERROR and not recovers else None

    def memo_rows(self) -> list[tuple[int | None, str]]:
        """Return the memos of tasks that may run, and forget those of the others."""
        for process in self.processes.values():
            is_broken = process.status is ProcessStatus.ERROR
            for task in process.tasks:
                if task.has_ended and not (is_broken and task is process.broken_by):
                    task.memos.clear()
        return sorted(
            (task.task_id, memo_key)
            for process in self.processes.values()
            for task in process.tasks
            for memo_key in task.memos
        )

    def remove(self, process_id: str) -> ModelProcess | None:
        return self.processes.pop(process_id, None)

    def process_rows(self) -> list[tuple[object, ...]]:
        return [
            (
                process_id,
                str(process.status),
                process.detail,
                process.broken_by and process.broken_by.task_id,
                process.event_count,
                process.aux_state,
                process.state_version,
            )
            for process_id, process in sorted(self.processes.items())
        ]

    def task_rows(self) -> list[tuple[object, ...]]:
        """Return what the tables should say of tasks, once all their ids are known."""
        tasks = [
            (task.task_id or 0, process_id, task)
            for process_id, process in self.processes.items()
            for task in process.tasks
        ]
        return [
            (
                task_id,
                process_id,
                str(task.task_type),
                str(task.status),
                task.attempt,
                task.due_at,
                task.error_reason,
                task.response,
                task.idempotency_key,
                task.timer_name,
            )
            for task_id, process_id, task in sorted(tasks, key=lambda each: each[0])
        ]

    def _finish(
        self, process: ModelProcess, task: ModelTask, finish: Finish, now: dt.datetime
    ) -> None:
        intent, broken_by = finish.intent, process.broken_by
        was_broken = process.status is ProcessStatus.ERROR
        task.end(TaskStatus.FINISHED)
        task.response = intent.response
        process.event_count += len(intent.events)
        if intent.aux_state is not None:
            process.aux_state, process.state_version = intent.aux_state, intent.state_version
        if isinstance(intent.action, Complete):
            self._cancel(process, "PROCESS_FINISHED")
            process.status, process.detail, process.broken_by = ProcessStatus.FINISHED, None, None
            return
        if was_broken:
            self._recover(process)
        process.status = ProcessStatus.RUNNING
        changes = dict(intent.timers)
        if not isinstance(intent.timer, KeepTimer):
            changes = {"": intent.timer, **changes}
        for name, change in changes.items():
            self._change_timer(process, name, change, now)
        if (
            task.task_type is TaskType.REPAIR
            and broken_by is not None
            and broken_by.task_type in TIMER_TYPES
            and broken_by.has_ended
            and broken_by.timer_name not in changes
        ):
            process.add_timer(self._again(process, broken_by, now))

    @staticmethod
    def _change_timer(
        process: ModelProcess, name: str, change: SetTimer | UnsetTimer, now: dt.datetime
    ) -> None:
        replaced = process.take_timer(name)
        if replaced is not None:
            replaced.end(TaskStatus.CANCELLED)
        if isinstance(change, SetTimer):
            assert change.after is not None, "the model sets timers by durations"
            timer = ModelTask(
                task_id=None,
                task_type=TaskType.REMOVE if change.remove else TaskType.TIMEOUT,
                due_at=now + change.after,
                constraints=change.constraints,
                timer_name=name,
            )
            process.add_timer(process.add(timer))

    def _go_on(
        self,
        process: ModelProcess,
        retried: ModelTask | None,
        *,
        continues: bool,
        now: dt.datetime,
    ) -> ModelTask | None:
        """Let the line move: calls, then the earliest timer unless it waits for its retry."""
        timer = process.timer
        for other in process.timers:
            other.status = TaskStatus.BLOCKED
        if process.line:
            process.line[0].due_at = process.line[0].due_at or now
            if not continues:
                return None
            return self._run(process, process.line.pop(0))
        if timer is None:
            return None
        timer.status = TaskStatus.WAITING
        assert timer.due_at is not None, "a timer is due at some time"
        if timer.due_at <= now and continues and timer is not retried:
            process.drop(timer)
            return self._run(process, timer)
        return None

    @staticmethod
    def _run(process: ModelProcess, task: ModelTask) -> ModelTask:
        task.status, task.due_at = TaskStatus.RUNNING, None
        task.attempt += 1
        process.running = task
        return task

    @staticmethod
    def _recover(process: ModelProcess) -> None:
        process.status, process.detail, process.broken_by = ProcessStatus.RUNNING, None, None
        for repair in process.line:
            repair.end(TaskStatus.CANCELLED, "PROCESS_IS_RUNNING")
        process.line.clear()
        for task in process.held:
            if task.task_type in TIMER_TYPES:
                process.timers.append(task)
            else:
                task.status = TaskStatus.WAITING
                process.line.append(task)
        process.held.clear()

    def _break(self, process: ModelProcess, task: ModelTask, settlement: Break) -> None:
        if process.status is not ProcessStatus.ERROR:
            self._hold(process, cancels=settlement.cancels)
        process.status, process.detail = ProcessStatus.ERROR, settlement.error.message
        process.broken_by = task

    def _hold(self, process: ModelProcess, *, cancels: bool) -> None:
        waiting = [*process.waiting()]
        process.line, process.timers, apart = [], [], process.apart
        process.apart = []
        for task in waiting:
            if cancels or not task.is_held_on_error:
                task.end(TaskStatus.CANCELLED, "PROCESS_FAILED")
            elif task in apart or task.constraints is not None:
                process.apart.append(task)
            else:
                task.status = TaskStatus.BLOCKED
                task.due_at = task.due_at if task.task_type in TIMER_TYPES else None
                process.held.append(task)

    @staticmethod
    def _again(process: ModelProcess, timer: ModelTask, now: dt.datetime) -> ModelTask:
        return process.add(
            ModelTask(
                task_id=None,
                task_type=timer.task_type,
                due_at=now,
                constraints=timer.constraints,
                timer_name=timer.timer_name,
            )
        )

    @staticmethod
    def _end_one(process: ModelProcess, task: ModelTask, reason: str) -> None:
        """Cancel a task; the key of one that has broken its process stays, since it has begun."""
        key = task.idempotency_key
        task.end(TaskStatus.CANCELLED, reason)
        if task is process.broken_by:
            task.idempotency_key = key

    def _cancel(self, process: ModelProcess, reason: str) -> None:
        for task in process.waiting():
            self._end_one(process, task, reason)
        process.line.clear()
        process.apart.clear()
        process.held.clear()
        process.timers.clear()
