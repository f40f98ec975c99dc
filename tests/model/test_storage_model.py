"""Storage on PostgreSQL against a model of 200 lines, through faults, in any order of events."""

import datetime as dt

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from progressor.domain.processes.intent import Outcome, Released
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from tests.support.models.liveness import faults_stop
from tests.support.models.modelled_processes import ModelledStorage, ReplicasMachine
from tests.support.models.strategies import (
    AFTER,
    ARGS,
    FAILURES,
    IDS,
    KEYS,
    LONGEST_TIMER,
    MOSTLY,
    OUTCOMES,
    PAUSES,
    PLAIN,
    RARELY,
    STORES,
    SUCCESSES,
    WHICH,
)


class StorageMachine(ReplicasMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = ModelledStorage(self.machinery)

    @initialize(beginnings=st.lists(st.none() | OUTCOMES | st.sampled_from(TaskType), max_size=3))
    def begin(self, beginnings: list[Outcome | TaskType | None]) -> None:
        """Begin with processes that have taken a step, or were broken by a task of some type."""
        for process_id, beginning in zip("abc", beginnings, strict=False):
            if isinstance(beginning, TaskType):
                self.storage.put(process_id, ProcessStatus.ERROR, broken_by=beginning)
            elif beginning is not None:
                self.storage.request(TaskType.INIT, process_id, 0)
                self.storage.settle(
                    next(iter(self.storage.held.values())), beginning, continues=False
                )

    # What clients do.

    @rule(process_id=IDS, store=STORES, run=MOSTLY, key=KEYS, args=ARGS)
    def start(self, process_id: str, store: int, run: bool, key: str | None, args: bytes) -> None:
        self.storage.request(TaskType.INIT, process_id, store, run=run, key=key, args=args)

    @rule(
        task_type=st.sampled_from([TaskType.CALL, TaskType.CALL, TaskType.NOTIFY, TaskType.REPAIR]),
        process_id=IDS, store=STORES, run=MOSTLY, key=KEYS, args=ARGS,
    )  # fmt: skip
    def request(
        self,
        task_type: TaskType,
        process_id: str,
        store: int,
        run: bool,
        key: str | None,
        args: bytes,
    ) -> None:
        waits = task_type is not TaskType.NOTIFY
        self.storage.request(task_type, process_id, store, run=run, key=key, args=args, waits=waits)

    @rule(process_id=IDS, store=STORES, args=ARGS)
    def call(self, process_id: str, store: int, args: bytes) -> None:
        self.storage.request(TaskType.CALL, process_id, store, args=args)

    @rule(process_id=IDS, store=STORES, retries=st.booleans())
    def recover(self, process_id: str, store: int, retries: bool) -> None:
        self.storage.recover(process_id, store, retries=retries)

    @rule(
        process_id=IDS,
        status=st.sampled_from(sorted({*ProcessStatus} - {ProcessStatus.INIT})),
        event_count=st.integers(0, 2),
        after=st.none() | AFTER,
        broken_by=st.sampled_from([None, TaskType.CALL, TaskType.TIMEOUT]),
        timers=st.lists(st.sampled_from(["a", "b"]), unique=True).map(sorted),
    )  # fmt: skip
    def put(
        self,
        process_id: str,
        status: ProcessStatus,
        event_count: int,
        after: dt.timedelta | None,
        broken_by: TaskType | None,
        timers: list[str],
    ) -> None:
        self.storage.put(
            process_id,
            status,
            event_count=event_count,
            after=after,
            timers=timers,
            broken_by=broken_by,
        )

    @rule(process_id=IDS, really=RARELY, keeps=st.booleans())
    def remove_or_terminate(self, process_id: str, really: bool, keeps: bool) -> None:
        if really and keeps:
            self.storage.terminate(process_id)
        elif really:
            self.storage.remove(process_id)

    @rule(which=WHICH, really=RARELY)
    def cancel(self, which: int, really: bool) -> None:
        if really:
            self.storage.cancel(which)

    # What processors and workers do.

    @rule(which=WHICH, outcome=SUCCESSES)
    def succeed(self, which: int, outcome: Outcome) -> None:
        self.answer_held(self.storage.a_held_task(which), outcome, continues=True)

    @rule(which=WHICH, outcome=OUTCOMES, continues=st.booleans())
    def answer(self, which: int, outcome: Outcome, continues: bool) -> None:
        self.answer_held(self.storage.a_held_task(which), outcome, continues=continues)

    @rule(
        which=WHICH,
        outcomes=st.lists(PLAIN, min_size=1, max_size=4),
        calls=st.integers(0, 3),
        cancels=RARELY,
    )
    def take_a_turn(self, which: int, outcomes: list[Outcome], calls: int, cancels: bool) -> None:
        held = self.storage.a_held_task(which)
        if held is None:
            return
        for _ in range(calls):
            self.storage.request(TaskType.CALL, held.task.key.process_id, held.store)
        if held.task.token in self.storage.held:
            self.storage.settle_turn(held, outcomes, cancels=cancels)

    @rule(which=WHICH, outcome=FAILURES, continues=st.booleans())
    def fail(self, which: int, outcome: Outcome, continues: bool) -> None:
        self.answer_held(self.storage.a_held_task(which), outcome, continues=continues)

    @rule(which=WHICH, memo_key=st.sampled_from("mn"))
    def remember(self, which: int, memo_key: str) -> None:
        held = self.storage.a_held_task(which)
        if held is not None:
            self.storage.remember(held, memo_key)

    @rule(which=WHICH)
    def release(self, which: int) -> None:
        held = self.storage.a_held_task(which)
        if held is not None:
            self.storage.settle(held, Released(), continues=False)

    @rule(wait=st.booleans(), limit=st.sampled_from([1, 100, 100]))
    def claim(self, wait: bool, limit: int) -> None:
        self.storage.claim(wait=wait, limit=limit)

    # What time and faults do.

    @rule(pause=PAUSES)
    def let_time_pass(self, pause: dt.timedelta) -> None:
        self.storage.clock.advance(pause)
        self.storage.beat()
        # What lies ahead comes, and leases are lost.
        self.storage.waits_are_reported()

    @rule(really=RARELY, continues=st.booleans())
    def everything_due_is_done_once_faults_stop(self, really: bool, continues: bool) -> None:
        if really:
            faults_stop(self.storage, continues=continues)

    # What people and machines read.

    @rule()
    def waits_are_reported(self) -> None:
        self.storage.waits_are_reported()

    # What must hold after each of them.

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        self.storage.tables_are_as_the_model_says()

    @invariant()
    def laws_hold(self) -> None:
        self.storage.laws_hold()

    def teardown(self) -> None:
        """Let faults stop, and then the time of the last timer come."""
        faults_stop(self.storage, continues=True)
        self.storage.clock.advance(LONGEST_TIMER)
        self.storage.beat()
        faults_stop(self.storage, continues=True)
        self.tables_are_as_the_model_says()
        self.laws_hold()
        left = self.machinery.observer.execute("SELECT task_id FROM progressor.schedule").fetchall()
        assert left == []


def test_storage_does_what_its_model_does(own_database: str) -> None:
    StorageMachine.check(own_database, steps=50, factor=2)
