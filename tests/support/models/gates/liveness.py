"""Liveness of gates: once faults stop, everybody passes who is not kept out by a living process.

Faults stop in whatever state, processors succeed, what broke is retried, and nothing new is asked
for. Then a waiting task still waits for a gate that a process holds until it ends, or for a task
that does; once these processes complete, nothing waits, and nothing is held.
"""

import datetime as dt

from progressor.domain.processes.intent import Complete, RemoveProcess
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.models.gates.modelled import ModelledGates
from tests.support.models.processes import ModelProcess, ModelTask
from tests.support.models.strategies import LONGEST_BACKOFF, LONGEST_TIMER
from tests.support.storage.store import LEASE_TIMEOUT, success

_ROUNDS_MAX = 200
"""Rounds of claims: a step of each process in each; far more than there are tasks."""


def gates_empty(storage: ModelledGates) -> None:
    """Let faults stop now, and assert the invariant; the clock is the later for it."""
    _let_faults_stop(storage)
    for pause in (LONGEST_BACKOFF, LONGEST_TIMER):
        _work_through(storage)
        storage.let_time_pass(pause)
    _work_through(storage)
    while _waits(storage) or _keeping(storage):
        if not _solve_contradiction(storage):
            _complete_one_that_holds(storage)
        _work_through(storage)
    storage.tables_are_as_the_model_says()
    assert list(storage.model.gated()) == []
    assert (
        storage.machinery.observer.execute("SELECT FROM progressor.gate_holders").fetchall() == []
    )
    assert storage.machinery.observer.execute("SELECT FROM progressor.gate_queues").fetchall() == []


def _let_faults_stop(storage: ModelledGates) -> None:
    storage.alive = {0, 1}
    storage.let_time_pass(LEASE_TIMEOUT + dt.timedelta(microseconds=1))
    for store in sorted(storage.alive):
        storage.collect(store)
    for gate, capacity in sorted(storage.model.capacities.items()):
        if capacity == 0:
            storage.set_gate(gate, 1)
    for process_id, process in sorted(storage.model.processes.items()):
        if process.status is ProcessStatus.ERROR:
            storage.recover(process_id, 0, retries=True)


def _work_through(storage: ModelledGates) -> None:
    for _ in range(_ROUNDS_MAX):
        if storage.due():
            storage.claim(wait=True, limit=100)
        if not storage.held:
            return
        while storage.held:
            held = next(iter(storage.held.values()))
            removes = held.task.task_type is TaskType.REMOVE
            storage.settle(held, success(RemoveProcess() if removes else None), continues=True)
            storage.tables_are_as_the_model_says()
    raise AssertionError("there is always more to do")


def _waits(storage: ModelledGates) -> list[tuple[ModelProcess, ModelTask]]:
    return list(storage.model.apart())


def _keeping(storage: ModelledGates) -> list[str]:
    model = storage.model
    return [name for name, process in model.processes.items() if model.kept[process]]


def _solve_contradiction(storage: ModelledGates) -> bool:
    """Assert that all wait with a reason that lasts, but for a start that is cancelled; was one?

    Nothing of a process runs before its start. So a start may wait for the smaller version of a
    call that stands behind it, or behind another such start: the client must cancel one of
    them. Otherwise no circle of waits is possible.
    """
    model = storage.model
    with_reason = _wait_for_processes(storage)
    circle = [each for each in _waits(storage) if each[1] not in with_reason]
    if not circle:
        return False
    contradictions = [
        (process, task)
        for process, task in circle
        if task.task_type is TaskType.INIT
        and any(
            other in circle and other[0].status is ProcessStatus.INIT
            for other in model.smaller_versions(task)
        )
    ]
    assert contradictions, f"{[task.task_id for _, task in circle]} wait for each other"
    process, task = contradictions[0]
    storage.cancel_task(model.name_of(process), task)
    return True


def _wait_for_processes(storage: ModelledGates) -> set[ModelTask]:
    """Return who waits, by however many others, for a gate that another process holds for good."""
    model = storage.model
    kept = {gate for process in model.processes.values() for gate in model.kept[process]}
    found: set[ModelTask] = set()
    while True:
        reserved = {
            gate
            for process, task in _waits(storage)
            if task in found
            for gate in model.reserved_for(process, task)
        }
        more = {
            task
            for process, task in _waits(storage)
            if task not in found
            and (
                model.full(task, model.own(process, task)) & (kept | reserved)
                or {other for _, other in model.smaller_versions(task)} & found
                or set(model.before(process, task)) & found
            )
        }
        if not more:
            return found
        found |= more


def _complete_one_that_holds(storage: ModelledGates) -> None:
    for process_id, process in list(storage.model.processes.items()):
        if not storage.model.kept[process]:
            continue
        if process.status is ProcessStatus.INIT:
            # Its init task waits again, for its retry, and now for a smaller version that came
            # later, and that waits for the gate: the client must cancel one of them.
            [init] = [task for task in process.tasks if task.task_type is TaskType.INIT]
            storage.cancel_task(process_id, init)
            return
        assert process.status is ProcessStatus.RUNNING
        storage.request(TaskType.CALL, process_id, 0)
        [held] = [each for each in storage.held.values() if each.task.key.process_id == process_id]
        storage.settle(held, success(Complete()), continues=True)
        return
