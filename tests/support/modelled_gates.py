"""Storage with gates and its model side by side: after each deed, who has passed is looked at."""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import LiteralString

import pytest

from progressor import errors
from progressor.domain.admission import Verdict
from progressor.domain.constraint import Constraints, GatedState
from progressor.domain.intent import Outcome
from progressor.domain.task import TaskStatus, TaskType
from progressor.storage.promoted import Promoted
from tests.support.gates_model import GatedModel
from tests.support.model import ModelProcess, ModelTask
from tests.support.modelled_storage import ModelledStorage, key_of
from tests.support.storage import NAMESPACE, a_request

_GATED: LiteralString = "SELECT task_id, state::text FROM progressor.gated"
_HOLDERS: LiteralString = """
    SELECT process_id, gate, is_reserved, task_id FROM progressor.gate_holders"""
_GATES: LiteralString = "SELECT gate, capacity, held FROM progressor.gates"
_LINES: LiteralString = """
    SELECT l.line, l.head_priority, l.head_task_id, l.oldest_at, l.oldest_id
    FROM progressor.gate_lines l
    ORDER BY l.line"""
_HEADS: LiteralString = """
    SELECT DISTINCT ON (g.line) g.line, g.priority, g.task_id,
        min(g.ripe_at) OVER (PARTITION BY g.line),
        first_value(g.task_id) OVER (PARTITION BY g.line ORDER BY g.ripe_at, g.task_id)
    FROM progressor.gated g
    WHERE g.line IS NOT NULL
    ORDER BY g.line, g.priority, g.task_id"""
_LOCK: LiteralString = """
    SELECT FROM progressor.processes WHERE process_id = %s FOR NO KEY UPDATE"""
_LOOKS_MAX = 20
"""Each look promotes what it finds: more than there are tasks would be a circle."""


class ModelledGates(ModelledStorage):
    """Two replicas at work, on processes with gates."""

    model: GatedModel
    locked: str | None = None
    """A process that somebody keeps locked."""

    def a_model(self) -> GatedModel:
        """Return the model to compare with."""
        return GatedModel()

    def request(
        self,
        task_type: TaskType,
        process_id: str,
        desk: int,
        *,
        run: bool,
        key: str | None,
        args: bytes,
        constraints: Constraints | None = None,
    ) -> None:
        """Admit a request, which comes with the capacities of the gates that are not there."""
        if constraints is not None:
            unknown = [
                gate
                for gate, capacity in constraints.gates.items()
                if capacity is None and gate not in self.model.capacities
            ]
            if unknown:
                asked = a_request(key_of(process_id), task_type, constraints=constraints)
                refused = self.do(self.desks[desk].admit(asked))
                assert (refused.verdict, refused.gate) == (Verdict.GATE_NOT_FOUND, min(unknown))
                return
        super().request(
            task_type, process_id, desk, run=run, key=key, args=args, constraints=constraints
        )

    def later(self, constraints: Constraints, soon: dt.timedelta) -> Constraints:
        """Return constraints that also wait for an instant."""
        return dataclasses.replace(constraints, run_at=self.clock.now() + soon)

    def unended(self) -> list[tuple[str, ModelTask]]:
        """Return the tasks that have not ended, with their processes."""
        return [
            (process_id, task)
            for process_id, process in self.model.processes.items()
            for task in process.tasks
            if not task.has_ended
        ]

    def cancel(self, which: int) -> None:
        """Cancel a task that has not ended."""
        self.adopt()
        unended = self.unended()
        if not unended:
            return
        self.cancel_task(*unended[which % len(unended)])

    def cancel_task(self, process_id: str, task: ModelTask) -> None:
        """Cancel a task; one that runs cannot be."""
        assert task.task_id is not None
        cancel = self.desks[0].processes.cancel(key_of(process_id), task.task_id)
        if task.status is TaskStatus.RUNNING:
            with pytest.raises(errors.TaskIsRunningError):
                self.do(cancel)
            return
        self.model.cancel(process_id, task, self.clock.now())

        self.do(cancel)

        self.follow()

    def set_gate(self, gate: str, capacity: int) -> None:
        """Set a capacity."""
        now = self.clock.now()
        self.model.set_gate(gate, capacity, now)

        self.do(
            self.desks[0].gates.set(NAMESPACE.name, gate, capacity=capacity, expected_revision=0)
        )

        self.follow()

    def delete_gate(self, gate: str) -> None:
        """Delete a gate, if it is not in use."""
        in_use = bool(self.model.held(gate)) or any(
            gate in self.model.wants(task) for _, task in self.model.gated()
        )
        is_there = gate in self.model.capacities
        delete = self.desks[0].gates.delete(NAMESPACE.name, gate)
        if is_there and not in_use:
            self.do(delete)
            del self.model.capacities[gate]
            return
        with pytest.raises(errors.GateInUseError if is_there else errors.GateNotFoundError):
            self.do(delete)

    def let_time_pass(self, pause: dt.timedelta) -> None:
        """Let time pass, and what has come be looked at."""
        self.clock.advance(pause)
        self.beat()
        self.model.look_at_all_that_is_due(self.clock.now())
        self._hear(self.do(self.desks[0].gates.promote_due([NAMESPACE.name])))
        self.follow()

    @contextlib.contextmanager
    def somebody_locks(self, process_id: str) -> Iterator[None]:
        """Keep a process locked; what others could not look at, they look at afterwards."""
        with self.machinery.eye.transaction():
            self.machinery.eye.execute(_LOCK, [process_id])
            self.locked = process_id
            yield
        self.locked = None
        self.follow(by_rank=False)

    def settle_too_late(self, which: int, outcome: Outcome) -> None:
        """Settle under a lease that is lost: nothing changes."""
        super().settle_too_late(which, outcome)
        self.follow()

    def what_waits_is_told(self) -> None:
        """Ask where no task has constraints; what such a one is told has tests of its own."""
        if not any(True for _ in self.model.gated()):
            super().what_waits_is_told()

    def follow(self, *, by_rank: bool = True) -> None:
        """Look at who has passed because of a deed, and whether that was right.

        Not ``by_rank``: whoever was locked meanwhile could not pass, and others have.
        """
        if self.locked is not None:
            return
        now = self.clock.now()
        self.adopt()
        told = self._told()
        rows = self.machinery.eye.execute(_GATED).fetchall()
        states = {row[0]: GatedState(row[1]) for row in rows}
        waited = {task for _, task in self.model.apart()}
        passed = [task for task in waited if states.get(_id(task)) is GatedState.AVAILABLE]
        for task in passed:
            self.model.assert_may_pass(task, now)
        for task in passed:
            self.model.pass_on(task, now)
        # Not before: what they had reserved by then, they have not taken now.
        self.model.reserve(self._reserved())
        self._are_told(passed, waited, told, states)
        for _, task in self.model.gated():
            self.model.passages[task].named = states[_id(task)]
        holders = self.machinery.eye.execute(_HOLDERS).fetchall()
        self.model.keep({task_id for _, _, is_reserved, task_id in holders if not is_reserved})
        if by_rank:
            self.model.assert_rank(passed, now)

    def tables_are_as_the_model_says(self) -> None:
        """Compare everything."""
        super().tables_are_as_the_model_says()
        eye, model, now = self.machinery.eye, self.model, self.clock.now()
        states = {row[0]: GatedState(row[1]) for row in eye.execute(_GATED).fetchall()}
        assert states.keys() == {task.task_id for _, task in model.gated()}
        for process, task in model.gated():
            self._state_is_right(process, task, states[_id(task)], now)
        holders = eye.execute(_HOLDERS).fetchall()
        assert {(row[0], row[1]) for row in holders if not row[2]} == {
            (process_id, gate)
            for process_id, process in model.processes.items()
            for gate in model.holds(process)
        }
        assert {row[0]: row[1:] for row in eye.execute(_GATES).fetchall()} == {
            gate: (capacity, model.held(gate)) for gate, capacity in model.capacities.items()
        }
        assert eye.execute(_LINES).fetchall() == eye.execute(_HEADS).fetchall()
        assert self.do(self.desks[0].gates.find_idle([NAMESPACE.name])) == ()

    def _state_is_right(
        self, process: ModelProcess, task: ModelTask, state: GatedState, now: dt.datetime
    ) -> None:
        if task not in process.apart:
            assert state is GatedState.AVAILABLE
            return
        in_the_way = self.model.in_the_way(process, task, now)
        assert state in in_the_way, f"{task.task_id} names {state}, waits for {in_the_way}"

    def _reserved(self) -> dict[str, dict[str, int]]:
        reserved: dict[str, dict[str, int]] = {}
        for row in self.machinery.eye.execute(_HOLDERS).fetchall():
            process_id, gate, is_reserved, task_id = row
            if is_reserved:
                reserved.setdefault(process_id, {})[gate] = task_id
        return reserved

    def _told(self) -> Promoted:
        """Return all that was told, once nothing is left to be looked at again."""
        heard = [told for desk in self.desks for told in desk.told]
        for desk in self.desks:
            desk.told.clear()
        for _ in range(_LOOKS_MAX):
            again = tuple(dict.fromkeys(each for told in heard for each in told.again))
            due = tuple(each for told in heard for each in told.due)
            later = tuple(each for told in heard for each in told.later)
            if not again:
                return Promoted(due=due, later=later)
            heard = [
                Promoted(due=due, later=later),
                self.do(self.desks[0].gates.look_again(NAMESPACE.name, again)),
            ]
        raise AssertionError("looked at again and again")

    def _hear(self, promoted: Promoted) -> None:
        self.desks[0].told.append(promoted)

    def _are_told(
        self,
        passed: list[ModelTask],
        waited: set[ModelTask],
        told: Promoted,
        states: dict[int, GatedState],
    ) -> None:
        """Assert that no scan is needed: who may run, and when who waits is to be looked at."""
        due = {task_id for _, task_id in told.due}
        later = [each.key.process_id for each in told.later]
        for task in passed:
            is_next = task.status is TaskStatus.WAITING and task.due_at is not None
            assert not is_next or task.task_id in due, f"{task.task_id} may run, and nobody knows"
        for process, task in self.model.apart():
            was = self.model.passages[task].named
            is_new = task not in waited or was is not GatedState.TIME
            if states[_id(task)] is GatedState.TIME and is_new:
                # Of a process the first instant is told; when it has come, the next.
                process_id = self.model.name_of(process)
                assert process_id in later, f"{task.task_id} has its time, and nobody knows"


def _id(task: ModelTask) -> int:
    assert task.task_id is not None, "its id is not known yet"
    return task.task_id
