"""Gates under any order of deeds: the doctor's invariants hold after each, and everything ends.

Never more holders than places, never a larger version before a smaller one, all gates of a task or
none; and no task waits for a gate that is free, without any scan.
"""

import dataclasses
import datetime as dt
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.intent import (
    Complete,
    KeepTimer,
    Outcome,
    Released,
    RemoveProcess,
    SetTimer,
    UnsetTimer,
)
from progressor.domain.processes.task import TaskType
from tests.support.models.strategies import MOSTLY, REFUSED, WHICH
from tests.support.storage.gates import (
    STORES_COUNT,
    Beside,
    GatedStorage,
    Opened,
    key_of,
    opened,
)
from tests.support.storage.store import BROKEN, UNREACHABLE, a_request, success

BEGUN = "pqr"
IDS = st.sampled_from([*BEGUN])
NEW_IDS = st.sampled_from(["s", "t", *BEGUN])
GATES = st.sampled_from(["a", "b", "c"])
ORDERS = st.sampled_from(["v", "w"])
STORES = st.integers(0, STORES_COUNT - 1)
CAPACITIES = st.sampled_from([1, 1, 1, 2])
PAUSES = st.sampled_from([0.5, 2, 100]).map(lambda seconds: dt.timedelta(seconds=seconds))
SOON = st.sampled_from([0, 1, 3]).map(lambda seconds: dt.timedelta(seconds=seconds))
AFTER = st.sampled_from([None] * 8 + [dt.timedelta(seconds=it) for it in (0, 3)])
HOLDS = st.sampled_from([GateHold.TASK] * 7 + [GateHold.PROCESS])

VERSIONS = st.lists(st.integers(0, 2), min_size=1, max_size=2).map(lambda it: Version(tuple(it)))
WANTED = st.dictionaries(GATES, CAPACITIES, min_size=1, max_size=3)
PRIORITIES = st.integers(1, 5)
GATED = st.builds(Constraints, gates=WANTED, priority=PRIORITIES, hold=HOLDS)
ORDERED = st.builds(
    Constraints,
    gates=st.just({}) | WANTED,
    order=st.builds(Order, ORDERS, VERSIONS),
    priority=PRIORITIES,
)
MAYBE = st.sampled_from([0, 1, 1, 1, 2]).flatmap([st.none(), GATED, ORDERED].__getitem__)
TYPES = st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.NOTIFY])
CALLS = st.lists(st.tuples(IDS, TYPES, MAYBE, AFTER), min_size=1, max_size=4)
TIMERS = st.builds(SetTimer, after=SOON, constraints=MAYBE)
SUCCESSES = st.one_of(
    st.sampled_from([success(KeepTimer()), success(KeepTimer()), success(UnsetTimer())]),
    TIMERS.map(success),
)
FAILURES = st.sampled_from([UNREACHABLE, UNREACHABLE, UNREACHABLE, REFUSED, Released()])
# What leaves nothing for others to do is rare.
ENDS = st.sampled_from([success(Complete(b"end")), success(RemoveProcess()), BROKEN, BROKEN])
OUTCOMES = st.sampled_from([0] * 6 + [1] * 4 + [2]).flatmap([SUCCESSES, FAILURES, ENDS].__getitem__)

Call = tuple[str, TaskType, Constraints | None, dt.timedelta | None]


class GatesMachine(RuleBasedStateMachine):
    """Three replicas that act in any order, while another session may hold rows locked."""

    opened: Opened

    def __init__(self) -> None:
        super().__init__()
        self.storage = GatedStorage(self.opened)

    @initialize(beginning=SUCCESSES)
    def begin(self, beginning: Outcome) -> None:
        """Begin with processes that have taken a step."""
        for process_id in BEGUN:
            request = a_request(key_of(process_id), TaskType.INIT)
            self.storage.request(request, 0, run=True)
            self.storage.settle(0, beginning)

    # What clients do.

    @rule(calls=CALLS, store=STORES, run=MOSTLY)
    def call(self, calls: Sequence[Call], store: int, run: bool) -> None:
        for call in calls:
            self._request(call, store, run=run)
            self.storage.judge()

    @rule(process_id=NEW_IDS, constraints=MAYBE, after=AFTER, store=STORES, run=MOSTLY)
    def start(
        self,
        process_id: str,
        constraints: Constraints | None,
        after: dt.timedelta | None,
        store: int,
        run: bool,
    ) -> None:
        self.storage.forget_finished(process_id, store)
        self._request((process_id, TaskType.INIT, constraints, after), store, run=run)

    def _request(self, call: Call, store: int, *, run: bool) -> None:
        process_id, task_type, constraints, after = call
        if constraints is not None and after is not None:
            run_at = self.storage.clock.now() + after
            constraints = dataclasses.replace(constraints, run_at=run_at)
        request = a_request(key_of(process_id), task_type, constraints=constraints)
        self.storage.request(request, store, run=run)

    @rule(
        process_id=IDS,
        deed=st.sampled_from(["repair", "repair", "simple repair", "simple repair", "remove"]),
        store=STORES,
        run=MOSTLY,
    )
    def repair_or_remove(self, process_id: str, deed: str, store: int, run: bool) -> None:
        match deed:
            case "repair":
                self._request((process_id, TaskType.REPAIR, None, None), store, run=run)
            case "simple repair":
                self.storage.simple_repair(process_id, store)
            case _:
                self.storage.remove(process_id, store)

    @rule(which=WHICH, store=STORES)
    def cancel(self, which: int, store: int) -> None:
        self.storage.cancel(which, store)

    # What workers do.

    @rule(outcomes=st.lists(OUTCOMES, min_size=1, max_size=4), which=WHICH, store=STORES)
    def work(self, outcomes: Sequence[Outcome], which: int, store: int) -> None:
        """Do what every replica does at once, where it has room."""
        for outcome in outcomes:
            self.storage.claim_told(store)
            self.storage.settle(which, outcome)
            self.storage.judge()
        self.storage.look_again(store)

    @rule(
        outcome=OUTCOMES,
        which=WHICH,
        beside=st.builds(Beside, IDS, st.none() | ORDERS, st.none() | GATES),
        store=STORES,
        claims=st.booleans(),
    )
    def work_while_others_have_locks(
        self, outcome: Outcome, which: int, beside: Beside, store: int, claims: bool
    ) -> None:
        """Rows that another session has locked are skipped and reported."""
        if claims:
            self.storage.claim_told(store)
        self.storage.settle_beside(which, outcome, beside)

    @rule(deed=st.sampled_from(["claim", "look again", "promote"]), store=STORES, limit=WHICH)
    def scan(self, deed: str, store: int, limit: int) -> None:
        match deed:
            case "claim":
                self.storage.claim_due(limit + 1, store)
            case "look again":
                self.storage.look_again(store)
            case _:
                self.storage.promote_due(store)

    @rule(pause=PAUSES, store=STORES, is_noticed=MOSTLY)
    def time_passes(self, pause: dt.timedelta, store: int, is_noticed: bool) -> None:
        self.storage.let_time_pass(pause)
        if is_noticed:
            self.storage.promote_due(store)
            self.storage.claim_told(store)

    # What operators do.

    @rule(gate=GATES, capacity=st.none() | st.integers(0, 3), store=STORES)
    def set_gate(self, gate: str, capacity: int | None, store: int) -> None:
        if capacity is None:
            self.storage.delete_gate(gate, store)
        else:
            self.storage.set_gate(gate, capacity, store)

    # What must hold after each of them.

    @invariant()
    def laws_hold(self) -> None:
        self.storage.judge()

    def teardown(self) -> None:
        """Give room, let time pass, and see everything end."""
        self.storage.everything_ends_by_what_is_told()


def test_whatever_happens_the_invariants_of_gates_hold_and_everything_ends(
    own_database: str,
) -> None:
    chosen = settings()
    with opened(own_database) as storage:

        class Machine(GatesMachine):
            opened = storage

        run_state_machine_as_test(Machine, settings=settings(chosen, stateful_step_count=50))


def test_a_retry_is_claimed_though_its_first_attempt_was_claimed_by_another_than_was_told(
    own_database: str,
) -> None:
    with opened(own_database) as three:
        storage = GatedStorage(three)
        storage.request(a_request(key_of("p"), TaskType.INIT), 0, run=True)
        storage.settle(0, success())
        storage.request(a_request(key_of("p")), 0, run=False)
        storage.claim_due(1, 1)
        storage.settle(0, UNREACHABLE)

        storage.claim_told(0)

        storage.judge()
        storage.everything_ends_by_what_is_told()
