"""Liveness of gates: once faults stop, everybody passes who is not kept out by a living process.

Faults stop in whatever state, processors succeed, and nothing new is asked for. Then whoever waits
still waits for a gate that a process holds until it ends; once these processes complete, nobody
waits, and nothing is held.
"""

import datetime as dt

from progressor.domain.constraint import GatedState
from progressor.domain.intent import Complete, RemoveProcess
from progressor.domain.process import ProcessStatus
from progressor.domain.task import TaskType
from tests.support.modelled_gates import ModelledGates
from tests.support.storage import LEASE_TIMEOUT, success
from tests.support.storage_strategies import LONGEST_BACKOFF, LONGEST_TIMER

_ROUNDS_MAX = 200
"""Rounds of claims: a step of each process in each; far more than there are tasks."""


def gates_empty(storage: ModelledGates) -> None:
    """Let faults stop now, and assert the law; the clock is the later for it."""
    storage.alive = {0, 1}
    storage.let_time_pass(LEASE_TIMEOUT + dt.timedelta(microseconds=1))
    for desk in sorted(storage.alive):
        storage.collect(desk)
    for gate, capacity in sorted(storage.model.capacities.items()):
        storage.set_gate(gate, max(1, capacity))
    for pause in (LONGEST_BACKOFF, LONGEST_TIMER):
        _work_through(storage)
        storage.let_time_pass(pause)
    _work_through(storage)
    _only_processes_keep_anybody_out(storage)
    while any(storage.model.kept[each] for each in storage.model.processes.values()):
        _complete_one_that_holds(storage)
        _work_through(storage)
    storage.tables_are_as_the_model_says()
    assert list(storage.model.gated()) == []
    assert storage.machinery.eye.execute("SELECT FROM progressor.gate_holders").fetchall() == []
    assert storage.machinery.eye.execute("SELECT FROM progressor.gate_lines").fetchall() == []


def _work_through(storage: ModelledGates) -> None:
    for _ in range(_ROUNDS_MAX):
        storage.claim(wait=True, limit=100)
        if not storage.held:
            return
        while storage.held:
            held = next(iter(storage.held.values()))
            removes = held.task.task_type is TaskType.REMOVE
            storage.settle(held, success(RemoveProcess() if removes else None), continues=True)
            storage.tables_are_as_the_model_says()
    raise AssertionError("there is always more to do")


def _only_processes_keep_anybody_out(storage: ModelledGates) -> None:
    model, now = storage.model, storage.clock.now()
    kept = {gate for process in model.processes.values() for gate in model.kept[process]}
    first = [
        (process, task)
        for process, task in model.apart()
        if model.in_the_way(process, task, now) == {GatedState.GATES}
    ]
    assert bool(first) == bool(model.apart()), "all of them wait for each other"
    for process, task in first:
        assert model.full(task, model.own(process, task)) & kept, f"{task} waits for nobody"


def _complete_one_that_holds(storage: ModelledGates) -> None:
    for process_id, process in list(storage.model.processes.items()):
        if not storage.model.kept[process]:
            continue
        if process.status is ProcessStatus.INIT:
            # Its init task waits again, for its retry, and now for a smaller version that came
            # later, and that waits for the gate: whoever asks for that must cancel one of them.
            [init] = [task for task in process.tasks if task.task_type is TaskType.INIT]
            storage.cancel_task(process_id, init)
            return
        assert process.status is ProcessStatus.RUNNING
        storage.request(TaskType.CALL, process_id, 0, run=True, key=None, args=b"")
        [held] = [each for each in storage.held.values() if each.task.key.process_id == process_id]
        storage.settle(held, success(Complete()), continues=True)
        return
