"""Gates in a crowd: long walks of deeds, drawn at random, and after each of them the invariants.

As ``test_gates_machine``, which explains a failure better; these meet more at once.
"""

import dataclasses
import datetime as dt
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

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
from tests.support.models.strategies import REFUSED
from tests.support.storage.gates import DESKS_COUNT, Beside, GatedStorage, key_of, opened
from tests.support.storage.store import BROKEN, UNREACHABLE, a_request, success

STEPS = 120
IDS, GATES, ORDERS = "pqrst", "abc", "vw"
WHICH_MAX = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Manner:
    """What a walk is like: how much of what its constraints have."""

    gates: float
    order: float
    run_at: float
    process_hold: float
    deadly: float


class Walk:
    """Deeds drawn at random."""

    def __init__(self, storage: GatedStorage, seed: int) -> None:
        self.storage = storage
        self.random = random.Random(seed)
        chosen = self.random.choice
        self.manner = Manner(
            gates=chosen([0.5, 0.9]),
            order=chosen([0.0, 0.2, 0.5]),
            run_at=chosen([0.0, 0.1]),
            process_hold=chosen([0.0, 0.1, 0.3]),
            deadly=chosen([0.01, 0.05]),
        )
        self.capacities = {gate: chosen([1, 1, 2]) for gate in GATES}
        self.deeds: dict[Callable[[], None], int] = {
            self.call: 30, self.start: 5, self.work: 30, self.claim: 8, self.work_beside: 8,
            self.look_again: 8, self.time_passes: 6, self.cancel: 4, self.set_gate: 4,
            self.repair: 6, self.remove: 1,
        }  # fmt: skip

    def take(self, steps: int) -> None:
        """Do so much, and judge after each deed."""
        for key in IDS:
            self.storage.request(a_request(key_of(key), TaskType.INIT), 0, run=True)
            self.storage.settle(0, success())
        for deed in self.random.choices([*self.deeds], [*self.deeds.values()], k=steps):
            deed()
            self.storage.judge()
        self.storage.everything_ends_by_what_is_told()

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    @property
    def store(self) -> int:
        return self.random.randrange(DESKS_COUNT)

    @property
    def which(self) -> int:
        return self.random.randrange(WHICH_MAX)

    def constraints(self) -> Constraints | None:
        if self.maybe(0.2):
            return None
        wanted = self.random.sample(GATES, self.random.choice([1, 1, 2, 3]))
        after = dt.timedelta(seconds=self.random.randrange(4))
        version = Version((self.random.randrange(2), self.random.randrange(6)))
        is_long = self.maybe(self.manner.process_hold)
        return Constraints(
            gates={it: self.capacities[it] for it in wanted if self.maybe(self.manner.gates)},
            order=(
                Order(self.random.choice(ORDERS), version)
                if self.maybe(self.manner.order)
                else None
            ),
            run_at=self.storage.clock.now() + after if self.maybe(self.manner.run_at) else None,
            priority=self.random.randrange(1, 6),
            hold=GateHold.PROCESS if is_long else GateHold.TASK,
        )

    def outcome(self) -> Outcome:
        if self.maybe(self.manner.deadly):
            ends: list[Outcome] = [success(Complete(b"")), success(RemoveProcess()), BROKEN]
            return self.random.choice(ends)
        after = dt.timedelta(seconds=self.random.choice([0, 1, 3]))
        constraints = self.constraints() if self.maybe(0.6) else None
        timer = SetTimer(after=after, constraints=constraints)
        outcomes: list[Outcome] = [
            *[success(KeepTimer())] * 5, success(timer), success(UnsetTimer()),
            UNREACHABLE, UNREACHABLE, REFUSED, Released(),
        ]  # fmt: skip
        return self.random.choice(outcomes)

    def request(self, task_type: TaskType, constraints: Constraints | None) -> None:
        process_id = self.random.choice(IDS)
        if task_type is TaskType.INIT:
            self.storage.forget_finished(process_id, self.store)
        request = a_request(key_of(process_id), task_type, constraints=constraints)
        note(f"{task_type} of {process_id} with {constraints}")
        self.storage.request(request, self.store, run=self.maybe(0.7))

    def call(self) -> None:
        self.request(self.random.choice([TaskType.CALL, TaskType.NOTIFY]), self.constraints())

    def start(self) -> None:
        self.request(TaskType.INIT, self.constraints())

    def repair(self) -> None:
        if self.maybe(0.5):
            self.request(TaskType.REPAIR, None)
        else:
            process_id = self.random.choice(IDS)
            note(f"simple repair of {process_id}")
            self.storage.simple_repair(process_id, self.store)

    def work(self) -> None:
        if self.maybe(0.7):
            self.storage.claim_told(self.store)
        which, outcome = self.which, self.outcome()
        note(f"settle {which} of {self.storage.held}: {outcome}")
        self.storage.settle(which, outcome)

    def work_beside(self) -> None:
        self.storage.claim_told(self.store)
        which, outcome = self.which, self.outcome()
        beside = Beside(
            process_id=self.random.choice(IDS),
            order=self.random.choice([None, *ORDERS]),
            gate=self.random.choice([None, *GATES]),
        )
        note(f"settle {which} of {self.storage.held} beside {beside}: {outcome}")
        self.storage.settle_beside(which, outcome, beside)

    def claim(self) -> None:
        if self.maybe(0.2):
            self.storage.claim_due(self.random.choice([1, 2, 100]), self.store)
        else:
            self.storage.claim_told(self.store)

    def look_again(self) -> None:
        self.storage.promote_due(self.store)
        self.storage.look_again(self.store)

    def time_passes(self) -> None:
        pause = dt.timedelta(seconds=self.random.choice([0.5, 2, 2, 100]))
        note(f"{pause} pass")
        self.storage.let_time_pass(pause)
        if self.maybe(0.7):
            self.storage.promote_due(self.store)

    def cancel(self) -> None:
        which = self.which
        note(f"cancel {which}")
        self.storage.cancel(which, self.store)

    def remove(self) -> None:
        process_id = self.random.choice(IDS)
        note(f"remove {process_id}")
        self.storage.remove(process_id, self.store)

    def set_gate(self) -> None:
        gate, capacity = self.random.choice(GATES), self.random.choice([0, 1, 1, 2, 3])
        note(f"gate {gate} gets {capacity}")
        if self.maybe(0.1):
            self.storage.delete_gate(gate, self.store)
        else:
            self.storage.set_gate(gate, capacity, self.store)


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


@pytest.mark.slow
def test_wherever_a_walk_leads_the_invariants_of_gates_hold_and_everything_ends(
    own_database: str,
) -> None:
    chosen = settings()
    with opened(own_database) as storage:

        @settings(
            chosen,
            max_examples=max(1, chosen.max_examples // 2),
            suppress_health_check=[*HealthCheck],
        )
        @given(seed=st.integers(0, 2**64 - 1))
        def walk(seed: int) -> None:
            Walk(GatedStorage(storage), seed).take(STEPS)

        walk()
