"""Storage with gates against its model, through faults, in any order of events."""

import datetime as dt

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from progressor.domain.constraint import Constraints
from progressor.domain.intent import Outcome, Released, RemoveProcess
from progressor.domain.task import TIMER_TYPES, TaskType
from tests.support.gates_liveness import gates_empty
from tests.support.gates_strategies import (
    CALLS,
    CAPACITIES,
    CONSTRAINTS,
    GATES,
    IDS,
    PAUSES,
    SET_CAPACITIES,
    SOON,
    STARTS,
    SUCCESSES,
)
from tests.support.modelled_gates import ModelledGates
from tests.support.modelled_storage import Held
from tests.support.storage import BROKEN, success
from tests.support.storage_machine import Machinery, machinery
from tests.support.storage_strategies import (
    DESKS,
    FAILURES,
    KEYS,
    MOSTLY,
    OUTCOMES,
    RARELY,
    REFUSED,
    WHICH,
)


class GatesMachine(RuleBasedStateMachine):
    """Two replicas and a crowd at few gates; either may fall silent, and speak up again."""

    machinery: Machinery

    def __init__(self) -> None:
        super().__init__()
        self.storage = ModelledGates(self.machinery)

    @initialize(capacities=st.fixed_dictionaries(dict.fromkeys("xyz", CAPACITIES)))
    def begin(self, capacities: dict[str, int]) -> None:
        """Begin with processes that take calls, and with gates."""
        for process_id in "abcd":
            self.storage.request(TaskType.INIT, process_id, 0, run=True, key=None, args=b"")
            [held] = self.storage.held.values()
            self.storage.settle(held, success(), continues=True)
        for gate, capacity in capacities.items():
            self.storage.set_gate(gate, capacity)

    # What clients do.

    @rule(process_id=STARTS, desk=DESKS, constraints=st.none() | CONSTRAINTS, run=MOSTLY)
    def start(self, process_id: str, desk: int, constraints: Constraints | None, run: bool) -> None:
        self.storage.request(
            TaskType.INIT, process_id, desk, run=run, key=None, args=b"", constraints=constraints
        )

    @rule(calls=CALLS, desk=DESKS)
    def call_through_gates(self, calls: list[tuple[str, Constraints]], desk: int) -> None:
        for process_id, constraints in calls:
            self.storage.request(
                TaskType.CALL, process_id, desk, run=True, key=None, args=b"",
                constraints=constraints,
            )  # fmt: skip

    @rule(
        task_type=st.sampled_from([TaskType.CALL, TaskType.NOTIFY]),
        process_id=IDS, desk=DESKS, constraints=CONSTRAINTS, soon=SOON, key=KEYS,
    )  # fmt: skip
    def ask_for_later(
        self,
        task_type: TaskType,
        process_id: str,
        desk: int,
        constraints: Constraints,
        soon: dt.timedelta,
        key: str | None,
    ) -> None:
        self.storage.request(
            task_type, process_id, desk, run=True, key=key, args=b"",
            constraints=self.storage.later(constraints, soon),
        )  # fmt: skip

    @rule(
        task_type=st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.REPAIR]),
        process_id=IDS, desk=DESKS, run=MOSTLY,
    )  # fmt: skip
    def request(self, task_type: TaskType, process_id: str, desk: int, run: bool) -> None:
        self.storage.request(task_type, process_id, desk, run=run, key=None, args=b"")

    @rule(process_id=IDS, desk=DESKS)
    def simple_repair(self, process_id: str, desk: int) -> None:
        self.storage.simple_repair(process_id, desk)

    @rule(process_id=IDS, really=RARELY)
    def remove(self, process_id: str, really: bool) -> None:
        if really:
            self.storage.remove(process_id)

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self.storage.cancel(which)

    @rule(gate=GATES, capacity=SET_CAPACITIES)
    def set_gate(self, gate: str, capacity: int) -> None:
        self.storage.set_gate(gate, capacity)

    @rule(gate=GATES)
    def delete_gate(self, gate: str) -> None:
        self.storage.delete_gate(gate)

    # What processors and workers do.

    @rule(which=WHICH, outcome=SUCCESSES)
    def succeed(self, which: int, outcome: Outcome) -> None:
        self._answer(self.storage.a_held_task(which), outcome)

    @rule(which=WHICH, outcome=SUCCESSES, locked=IDS)
    def succeed_while_another_is_locked(self, which: int, outcome: Outcome, locked: str) -> None:
        held = self.storage.a_held_task(which)
        if held is None or held.task.key.process_id == locked:
            return
        with self.storage.somebody_locks(locked):
            self._answer(held, outcome)

    @rule(which=WHICH, outcome=FAILURES)
    def fail(self, which: int, outcome: Outcome) -> None:
        self._answer(self.storage.a_held_task(which), outcome)

    @rule(which=WHICH, outcome=OUTCOMES)
    def settle_too_late(self, which: int, outcome: Outcome) -> None:
        self.storage.settle_too_late(which, outcome)

    @rule(which=WHICH)
    def release(self, which: int) -> None:
        held = self.storage.a_held_task(which)
        if held is not None:
            self.storage.settle(held, Released(), continues=False)

    @rule(limit=st.sampled_from([1, 100]))
    def claim(self, limit: int) -> None:
        self.storage.claim(wait=True, limit=limit)

    def _answer(self, held: Held | None, outcome: Outcome) -> None:
        if held is None:
            return
        if held.task.task_type is TaskType.REMOVE:
            outcome = success(RemoveProcess())
        if outcome is REFUSED and held.task.task_type in TIMER_TYPES:
            outcome = BROKEN
        self.storage.settle(held, outcome, continues=True)

    # What time and faults do.

    @rule(pause=PAUSES)
    def let_time_pass(self, pause: dt.timedelta) -> None:
        self.storage.let_time_pass(pause)

    @rule(desk=DESKS)
    def fall_silent(self, desk: int) -> None:
        self.storage.alive.discard(desk)

    @rule(desk=DESKS)
    def speak_up(self, desk: int) -> None:
        self.storage.alive.add(desk)
        self.storage.beat()

    @rule(desk=DESKS)
    def collect(self, desk: int) -> None:
        self.storage.collect(desk)

    # What must hold after each of them.

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        self.storage.tables_are_as_the_model_says()

    @invariant()
    def laws_hold(self) -> None:
        self.storage.laws_hold()

    def teardown(self) -> None:
        """Let faults stop: everybody passes."""
        gates_empty(self.storage)
        self.laws_hold()


# It finds, in some of its courses of 30 deeds, a task that passes one before it, or one that nobody
# brings to its end, and whether that is the model's fault or the engine's is not known of the last
# two. Until it is, it looks where somebody asks for it; the walks hold the laws in every run.
@pytest.mark.skipif(
    settings.get_current_profile_name() == "dev",
    reason="still finds courses that nobody has explained; HYPOTHESIS_PROFILE=ci asks",
)
def test_gates_do_what_their_model_does(own_database: str) -> None:
    chosen = settings()
    with machinery(own_database) as opened:

        class Machine(GatesMachine):
            machinery: Machinery = opened

        run_state_machine_as_test(
            Machine,
            settings=settings(chosen, max_examples=chosen.max_examples, stateful_step_count=30),
        )
