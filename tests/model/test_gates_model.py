"""Storage with gates against its model, through faults, in any order of events."""

import datetime as dt

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import KeepTimer, Outcome, Released, SetTimer, UnsetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.models.gates.liveness import gates_empty
from tests.support.models.gates.model import STARVATION_TIMEOUT
from tests.support.models.gates.modelled import ModelledGates
from tests.support.models.modelled_processes import ReplicasMachine
from tests.support.models.strategies import (
    AFTER,
    BUSY,
    ENDING,
    KEYS,
    LASTING,
    MOSTLY,
    RARELY,
    REFUSED,
    STORES,
    WHICH,
)
from tests.support.storage.store import BROKEN, UNREACHABLE, success

IDS = st.sampled_from(["a", "b", "c", "d"])
STARTS = st.sampled_from(["a", "b", "e", "f"])
GATES = st.sampled_from(["x", "y", "z"])
CAPACITIES = st.sampled_from([1, 1, 2])
SET_CAPACITIES = st.sampled_from([0, 1, 1, 2, 3])
ORDERS = st.builds(
    Order, st.just("o"), st.sampled_from(["1", "1.9", "1.10", "2"]).map(Version.parse)
)
WANTED = st.sampled_from(["x", "y", "z", "xy", "xz", "yz", "xyz", "xyz", ""]).flatmap(
    lambda gates: st.fixed_dictionaries(dict.fromkeys(gates, st.none() | CAPACITIES))
)
CONSTRAINTS = st.builds(
    Constraints,
    order=st.one_of(st.none(), st.none(), ORDERS),
    gates=WANTED,
    priority=st.sampled_from([3, 3, 1, 5]),
    hold=st.sampled_from([GateHold.TASK] * 7 + [GateHold.PROCESS]),
)
CALLS = st.lists(st.tuples(IDS, CONSTRAINTS), min_size=1, max_size=4)
CROWDS = st.tuples(*[CONSTRAINTS] * 4)
SOON = st.sampled_from([dt.timedelta(), dt.timedelta(seconds=2)])
PAUSES = st.sampled_from([dt.timedelta(seconds=1), dt.timedelta(seconds=6), STARVATION_TIMEOUT])
TIMERS = st.builds(SetTimer, after=AFTER, constraints=CONSTRAINTS)
SUCCESSES = st.builds(
    success,
    st.one_of(*[st.just(KeepTimer())] * 6, TIMERS, TIMERS, LASTING, ENDING),
    timers=st.one_of(
        *[st.just({})] * 4,
        st.dictionaries(
            st.sampled_from("ab"),
            st.one_of(TIMERS, st.builds(SetTimer, after=AFTER), st.just(UnsetTimer())),
            max_size=2,
        ),
    ),
)
WORK = st.lists(st.tuples(WHICH, SUCCESSES), min_size=1, max_size=3)
# What leaves nothing for others to do is rare.
FAILURES = st.sampled_from([UNREACHABLE] * 3 + [BUSY] * 2 + [REFUSED, Released(), BROKEN])


class GatesMachine(ReplicasMachine):
    """Two replicas and a crowd at few gates."""

    storage: ModelledGates

    def __init__(self) -> None:
        super().__init__()
        self.storage = ModelledGates(self.machinery)

    @initialize(capacities=st.fixed_dictionaries(dict.fromkeys("xyz", CAPACITIES)), crowd=CROWDS)
    def begin(self, capacities: dict[str, int], crowd: tuple[Constraints, ...]) -> None:
        """Begin with processes that take calls, with gates, and with who wants to pass them."""
        for process_id in "abcd":
            self.storage.put(process_id, ProcessStatus.RUNNING)
        for gate, capacity in capacities.items():
            self.storage.set_gate(gate, capacity)
        for process_id, constraints in zip("abcd", crowd, strict=True):
            self._call(process_id, 0, constraints)

    # What clients do.

    @rule(process_id=STARTS, store=STORES, constraints=st.none() | CONSTRAINTS, run=MOSTLY)
    def start(
        self, process_id: str, store: int, constraints: Constraints | None, run: bool
    ) -> None:
        self.storage.request(TaskType.INIT, process_id, store, run=run, constraints=constraints)

    @rule(calls=CALLS, store=STORES)
    def call_through_gates(self, calls: list[tuple[str, Constraints]], store: int) -> None:
        for process_id, constraints in calls:
            self._call(process_id, store, constraints)

    @rule(crowd=CROWDS, store=STORES)
    def call_all_through_gates(self, crowd: tuple[Constraints, ...], store: int) -> None:
        for process_id, constraints in zip("abcd", crowd, strict=True):
            self._call(process_id, store, constraints)

    def _call(self, process_id: str, store: int, constraints: Constraints) -> None:
        self.storage.request(TaskType.CALL, process_id, store, constraints=constraints)

    @rule(
        task_type=st.sampled_from([TaskType.CALL, TaskType.NOTIFY]),
        process_id=IDS, store=STORES, constraints=CONSTRAINTS, soon=SOON, key=KEYS,
    )  # fmt: skip
    def ask_for_later(
        self,
        task_type: TaskType,
        process_id: str,
        store: int,
        constraints: Constraints,
        soon: dt.timedelta,
        key: str | None,
    ) -> None:
        self.storage.request(
            task_type, process_id, store, key=key, waits=task_type is TaskType.CALL,
            constraints=self.storage.later(constraints, soon),
        )  # fmt: skip

    @rule(
        task_type=st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.REPAIR]),
        process_id=IDS, store=STORES, run=MOSTLY,
    )  # fmt: skip
    def request(self, task_type: TaskType, process_id: str, store: int, run: bool) -> None:
        self.storage.request(task_type, process_id, store, run=run)

    @rule(process_id=IDS, store=STORES, ends=RARELY, retries=st.booleans())
    def recover_or_end(self, process_id: str, store: int, ends: bool, retries: bool) -> None:
        if ends and retries:
            self.storage.terminate(process_id)
        elif ends:
            self.storage.remove(process_id)
        else:
            self.storage.recover(process_id, store, retries=retries)

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self.storage.cancel(which)

    @rule(gate=GATES, capacity=SET_CAPACITIES, deletes=RARELY)
    def set_or_delete_gate(self, gate: str, capacity: int, deletes: bool) -> None:
        if deletes:
            self.storage.delete_gate(gate)
        else:
            self.storage.set_gate(gate, capacity)

    # What processors and workers do.

    @rule(work=WORK)
    def succeed(self, work: list[tuple[int, Outcome]]) -> None:
        for which, outcome in work:
            self.answer_held(self.storage.a_held_task(which), outcome)

    @rule(work=WORK, limit=st.sampled_from([1, 100]))
    def claim_and_succeed(self, work: list[tuple[int, Outcome]], limit: int) -> None:
        self.storage.claim(wait=True, limit=limit)
        self.succeed(work)

    @rule(which=WHICH, outcome=SUCCESSES, locked=IDS)
    def succeed_while_another_is_locked(self, which: int, outcome: Outcome, locked: str) -> None:
        held = self.storage.a_held_task(which)
        if held is None or held.task.key.process_id == locked:
            return
        with self.storage.somebody_locks(locked):
            self.answer_held(held, outcome)

    @rule(which=WHICH, outcome=FAILURES)
    def fail(self, which: int, outcome: Outcome) -> None:
        self.answer_held(self.storage.a_held_task(which), outcome)

    @rule(limit=st.sampled_from([1, 100]))
    def claim(self, limit: int) -> None:
        self.storage.claim(wait=True, limit=limit)

    # What time and faults do.

    @rule(pause=PAUSES)
    def let_time_pass(self, pause: dt.timedelta) -> None:
        self.storage.let_time_pass(pause)

    # What must hold after each of them.

    @invariant()
    def model_and_invariants_hold(self) -> None:
        self.storage.judge()

    def teardown(self) -> None:
        """Let faults stop: everybody passes."""
        self.storage.laws_hold()
        gates_empty(self.storage)
        self.storage.laws_hold()


def test_gates_do_what_their_model_does(own_database: str) -> None:
    GatesMachine.check(own_database, steps=15)
