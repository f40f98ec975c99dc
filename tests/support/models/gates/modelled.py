"""Storage with gates and its model side by side: after each deed, who has passed is looked at."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, LiteralString, TypeVar

import pytest

from progressor import errors
from progressor.domain.gates.constraint import Constraints, GatedState
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.intent import Outcome
from progressor.domain.processes.process import Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.storage.postgres.rows.effects import Effects
from progressor.storage.steps.settlements import LeaseLost
from tests.support.models.gates.model import GatedModel
from tests.support.models.machine import Machinery
from tests.support.models.modelled_processes import ModelledStorage
from tests.support.models.processes import ModelProcess, ModelTask
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.gate_trace import Note, note_passages
from tests.support.storage.store import NAMESPACE, a_request, key_of

T = TypeVar("T")

_SEEN: LiteralString = """
    WITH noted AS (
        DELETE FROM public.noted RETURNING place, what, process_id, task_id, detail
    )
    SELECT
        (SELECT json_agg(json_build_array(
                p.process_id, p.status, coalesce(p.detail, p.end_reason), p.corrupted_by,
                p.last_event_id,
                encode(p.aux_state, 'hex'), p.state_version
            ) ORDER BY p.process_id COLLATE "C")
        FROM progressor.processes p),
        (SELECT json_agg(json_build_array(
                t.task_id, t.process_id, t.task_type, coalesce(s.status, t.status),
                t.attempt_count, s.due_at, t.error_reason, encode(t.response, 'hex'),
                t.idempotency_key, coalesce(t.timer_name, '')
            ) ORDER BY t.task_id)
        FROM progressor.tasks t
        LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)),
        (SELECT json_object_agg(g.task_id, g.state) FROM progressor.gated g),
        (SELECT json_agg(json_build_array(h.process_id, h.gate, h.is_reserved, h.task_id))
        FROM progressor.gate_holders h),
        (SELECT json_object_agg(g.gate, json_build_array(g.capacity, g.held))
        FROM progressor.gates g),
        (SELECT json_agg(json_build_array(n.what, n.process_id, n.task_id, n.detail)
            ORDER BY n.place)
        FROM noted n)"""
_PROCESS: LiteralString = """
    SELECT status::text, previous_status::text, detail, aux_state, metadata, corrupted_by,
        created_at, status_changed_at, last_event_id, init_task_id
    FROM progressor.processes
    WHERE process_id = %s"""
_LOCK: LiteralString = """
    SELECT FROM progressor.processes WHERE process_id = %s FOR NO KEY UPDATE"""
_LOOKS_MAX = 20
"""Each look promotes what it finds: more than there are tasks would be a circle."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What the tables hold, read at once, and what was noted since they were read before."""

    processes: list[tuple[Any, ...]]
    tasks: list[tuple[Any, ...]]
    states: dict[int, GatedState]
    holders: list[tuple[str, str, bool, int]]
    gates: dict[str, tuple[int, int]]
    notes: list[Note]


class ModelledGates(ModelledStorage):
    model: GatedModel
    locked: str | None = None
    """A process that another session keeps locked."""

    _seen: Seen | None = None
    """What the tables hold, as long as nothing has been done since."""
    _judged: Seen | None = None
    """What was found right."""

    def __init__(self, machinery: Machinery) -> None:
        super().__init__(machinery)
        self.trace = note_passages(machinery.observer)
        self._notes: list[Note] = []

    def a_model(self) -> GatedModel:
        return GatedModel()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        self._seen = None
        return super().do(work)

    def process(self, key: ProcessKey) -> Process:
        """Return a process as storage has it; that Get tells the same has tests of its own."""
        row = self.machinery.observer.execute(_PROCESS, [key.process_id], prepare=True).fetchone()
        assert row is not None
        status, previous_status, *others = row
        detail, aux_state, metadata, corrupted_by, *instants, last_event_id, init_task_id = others
        return Process(
            key=key,
            status=ProcessStatus(status),
            previous_status=None if previous_status is None else ProcessStatus(previous_status),
            detail=detail,
            aux_state=aux_state,
            metadata=metadata,
            corrupted_by=corrupted_by,
            created_at=instants[0],
            status_changed_at=instants[1],
            last_event_id=last_event_id,
            init_task_id=init_task_id,
            result=None,
        )

    def beat(self) -> None:
        """Let those that live write a heartbeat, at once."""
        self.do(self._beat_at_once())
        self.beaten |= dict.fromkeys(self.alive, self.clock.now())

    async def _beat_at_once(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in self.alive:
                group.create_task(self.stores[number].beat())

    def seen(self) -> Seen:
        if self._seen is None:
            row = self.machinery.observer.execute(_SEEN, prepare=True).fetchone()
            assert row is not None
            self._seen = _read(row)
            self._notes += self._seen.notes
        return self._seen

    def request(
        self,
        task_type: TaskType,
        process_id: str,
        store: int,
        *,
        run: bool = True,
        key: str | None = None,
        args: bytes = b"",
        constraints: Constraints | None = None,
        waits: bool = True,
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
                refused = self.do(self.stores[store].admit(asked))
                assert (refused.verdict, refused.gate) == (Verdict.GATE_NOT_FOUND, min(unknown))
                return
        super().request(
            task_type,
            process_id,
            store,
            run=run,
            key=key,
            args=args,
            constraints=constraints,
            waits=waits,
        )

    def later(self, constraints: Constraints, soon: dt.timedelta) -> Constraints:
        return dataclasses.replace(constraints, run_at=self.clock.now() + soon)

    def set_gate(self, gate: str, capacity: int) -> None:
        now = self.clock.now()
        self.model.set_gate(gate, capacity, now)

        self.do(self.stores[0].set_capacity(gate, capacity))

        self.follow()

    def delete_gate(self, gate: str) -> None:
        in_use = bool(self.model.held(gate)) or any(
            gate in self.model.wants(task) for _, task in self.model.gated()
        )
        is_there = gate in self.model.capacities
        delete = self.stores[0].gates.delete(NAMESPACE.name, gate)
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
        self._hear(self.do(self.stores[0].gates.promote_due([NAMESPACE.name])))
        self.follow()

    @contextlib.contextmanager
    def somebody_locks(self, process_id: str) -> Iterator[None]:
        """Keep a process locked; what others could not look at, they look at afterwards."""
        with self.machinery.observer.transaction():
            self.machinery.observer.execute(_LOCK, [process_id])
            self.locked = process_id
            yield
        self.locked = None
        self.follow(by_rank=False)

    def settle_too_late(self, which: int, outcome: Outcome) -> None:
        """Settle under a lease that is lost: nothing changes, which the tables show."""
        if not self.stale:
            return
        late = self.stale[which % len(self.stale)]

        settled = self.do(self.stores[late.store].settle(late.task, outcome))

        assert settled == LeaseLost()
        self.follow()

    def waits_are_reported(self) -> None:
        """Ask where no task has constraints; those with constraints have tests of their own."""
        if not any(True for _ in self.model.gated()):
            super().waits_are_reported()

    def follow(self, *, by_rank: bool = True) -> None:
        """Look at who has passed because of a deed, and whether that was right.

        Not ``by_rank``: a task that was locked meanwhile could not pass, and others have.
        """
        if self.locked is not None:
            return
        now = self.clock.now()
        self.adopt()
        told = self._collect_effects()
        seen = self.seen()
        trace = self.trace.replay(self._notes, self.model.capacities)
        self._notes = []
        waited = {task for _, task in self.model.apart()}
        passed = [task for task in waited if seen.states.get(_id(task)) is GatedState.AVAILABLE]
        for task in passed:
            self.model.assert_may_pass(task, now)
        for task in passed:
            self.model.pass_on(task, now)
        self.model.reserve(_reserved(seen))
        self._assert_reported(passed, waited, told, seen.states)
        for _, task in self.model.gated():
            self.model.passages[task].named = seen.states[_id(task)]
        self.model.keep(trace)
        self.model.assert_passages(trace, now, by_rank=by_rank)

    def tables_are_as_the_model_says(self) -> None:
        seen, model, now = self.seen(), self.model, self.clock.now()
        self.compare_rows(seen.processes, seen.tasks)
        assert seen.states.keys() == {task.task_id for _, task in model.gated()}
        for process, task in model.gated():
            self._state_is_right(process, task, seen.states[_id(task)], now)
        assert {(row[0], row[1]) for row in seen.holders if not row[2]} == {
            (process_id, gate)
            for process_id, process in model.processes.items()
            for gate in model.holds(process)
        }
        assert seen.gates == {
            gate: (capacity, model.held(gate)) for gate, capacity in model.capacities.items()
        }

    def judge(self) -> None:
        """Compare everything, and the invariants of gates, unless nothing was done since."""
        if self.seen() is not self._judged:
            self.tables_are_as_the_model_says()
            broken = broken_invariants(self.machinery.observer, of_gates=True, now=self.clock.now())
            assert broken == {}, broken
            self._judged = self.seen()

    def _state_is_right(
        self, process: ModelProcess, task: ModelTask, state: GatedState, now: dt.datetime
    ) -> None:
        if task not in process.apart:
            assert state is GatedState.AVAILABLE
            return
        in_the_way = self.model.in_the_way(process, task, now)
        assert state in in_the_way, f"{task.task_id} names {state}, waits for {in_the_way}"

    def _collect_effects(self) -> Effects:
        """Return all that was told, once nothing is left to be looked at again."""
        heard = [told for store in self.stores for told in store.reported]
        for store in self.stores:
            store.reported.clear()
        for _ in range(_LOOKS_MAX):
            again = tuple(dict.fromkeys(each for told in heard for each in told.again))
            due = tuple(each for told in heard for each in told.due)
            later = tuple(each for told in heard for each in told.later)
            lowered = dict.fromkeys(each for told in heard for each in told.lowered)
            for gate in lowered:
                while not self.do(self.stores[0].evict_holders(gate)).is_done:
                    pass
            if not again and not lowered:
                return Effects(due=due, later=later)
            heard = [Effects(due=due, later=later), *self.stores[0].reported]
            self.stores[0].reported.clear()
            if again:
                heard.append(self.do(self.stores[0].gates.look_again(NAMESPACE.name, again)))
        raise AssertionError("looked at again and again")

    def _hear(self, promoted: Effects) -> None:
        self.stores[0].reported.append(promoted)

    def _assert_reported(
        self,
        passed: list[ModelTask],
        waited: set[ModelTask],
        told: Effects,
        states: dict[int, GatedState],
    ) -> None:
        """Assert that no scan is needed: who may run, and when who waits is to be looked at."""
        due = {task_id for _, task_id in told.due}
        later = [each.key.process_id for each in told.later]
        for task in passed:
            is_next = task.status is TaskStatus.WAITING and task.due_at is not None
            assert not is_next or task.task_id in due, (
                f"{task.task_id} may run, and no replica knows"
            )
        for process, task in self.model.apart():
            was = self.model.passages[task].named
            is_new = task not in waited or was is not GatedState.TIME
            if states[_id(task)] is GatedState.TIME and is_new:
                # Of a process the first instant is reported; when it has come, the next.
                process_id = self.model.name_of(process)
                assert process_id in later, f"{task.task_id} has its time, and no replica knows"


def _id(task: ModelTask) -> int:
    assert task.task_id is not None, "its id is not known yet"
    return task.task_id


def _read(row: Sequence[Any]) -> Seen:
    processes, tasks, states, holders, gates, notes = row
    return Seen(
        processes=[(*each[:5], bytes.fromhex(each[5]), each[6]) for each in processes or []],
        tasks=[
            (
                *each[:5],
                None if each[5] is None else dt.datetime.fromisoformat(each[5]),
                each[6],
                None if each[7] is None else bytes.fromhex(each[7]),
                *each[8:],
            )
            for each in tasks or []
        ],
        states={int(task_id): GatedState(state) for task_id, state in (states or {}).items()},
        holders=[tuple(each) for each in holders or []],
        gates={gate: tuple(each) for gate, each in (gates or {}).items()},
        notes=notes or [],
    )


def _reserved(seen: Seen) -> dict[str, dict[str, int]]:
    reserved: dict[str, dict[str, int]] = {}
    for process_id, gate, is_reserved, task_id in seen.holders:
        if is_reserved:
            reserved.setdefault(process_id, {})[gate] = task_id
    return reserved
