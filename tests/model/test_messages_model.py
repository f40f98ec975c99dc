"""Messages on PostgreSQL against their model: sent, delivered, undone, answered, and orphaned.

After every operation the outboxes, the tasks with their args, the awaited replies and the refusals
are those of the model: each message is one task, in order, or is refused, and is answered once.
"""

import datetime as dt

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from progressor.domain.processes.intent import Outcome
from progressor.domain.processes.task import TaskType
from tests.support.models.liveness import faults_stop
from tests.support.models.messages.modelled import ModelledMessages
from tests.support.models.modelled_processes import ReplicasMachine
from tests.support.models.strategies import (
    FAILURES,
    IDS,
    PAUSES,
    RARELY,
    SENDING,
    STORES,
    SUCCESSES,
    WHICH,
)
from tests.support.storage.store import BROKEN


class MessagesMachine(ReplicasMachine):
    storage: ModelledMessages

    def __init__(self) -> None:
        super().__init__()
        self.storage = ModelledMessages(self.machinery)

    @initialize(beginnings=st.lists(SENDING, min_size=2, max_size=3))
    def begin(self, beginnings: list[Outcome]) -> None:
        """Begin with processes that have sent messages to each other."""
        for process_id, beginning in zip("abc", beginnings, strict=False):
            self.storage.request(TaskType.INIT, process_id, 0)
            held = next(iter(self.storage.held.values()))
            self.storage.settle(held, beginning, continues=False)

    # What clients and handlers do.

    @rule(
        process_id=IDS,
        task_type=st.sampled_from([TaskType.INIT, TaskType.CALL, TaskType.REPAIR]),
        store=STORES,
    )
    def request(self, process_id: str, task_type: TaskType, store: int) -> None:
        self.storage.request(task_type, process_id, store)

    @rule(which=WHICH, outcome=SENDING | FAILURES | st.just(BROKEN), continues=st.booleans())
    def answer(self, which: int, outcome: Outcome, continues: bool) -> None:
        self.answer_held(self.storage.a_held_task(which), outcome, continues=continues)

    @rule(which=WHICH, outcome=SUCCESSES, continues=st.booleans())
    def succeed(self, which: int, outcome: Outcome, continues: bool) -> None:
        self.answer_held(self.storage.a_held_task(which), outcome, continues=continues)

    @rule(
        process_id=IDS, store=STORES, how=st.sampled_from(["remove", "terminate", "retry", "fix"])
    )
    def end_or_recover(self, process_id: str, store: int, how: str) -> None:
        match how:
            case "remove":
                self.storage.remove(process_id)
            case "terminate":
                self.storage.terminate(process_id)
            case _:
                self.storage.recover(process_id, store, retries=how == "retry")

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self.storage.cancel(which)

    @rule(pause=PAUSES)
    def let_time_pass(self, pause: dt.timedelta) -> None:
        self.storage.clock.advance(pause)
        self.storage.beat()

    # What replicas do with the messages.

    @rule(which=WHICH, store=STORES, limit=st.sampled_from([1, 100]))
    def deliver(self, which: int, store: int, limit: int) -> None:
        self.storage.deliver(self.storage.a_sender(which), store, limit=limit)

    @rule(store=STORES)
    def deliver_all(self, store: int) -> None:
        self.storage.deliver_all(store)

    @rule(which=WHICH, store=STORES, dies=RARELY)
    def deliver_with_another(self, which: int, store: int, dies: bool) -> None:
        """Deliver with both replicas at once, or with one that dies before its commit."""
        sender_id = self.storage.a_sender(which)
        if dies:
            self.storage.deliver_and_die(sender_id, store)
        else:
            self.storage.deliver_at_once(sender_id)

    # What must hold after each of them.

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        self.storage.tables_are_as_the_model_says()

    @invariant()
    def laws_hold(self) -> None:
        self.storage.laws_hold()

    def teardown(self) -> None:
        """Let faults stop: then all is delivered, and who waits for a reply waits for an end."""
        faults_stop(self.storage, continues=True)
        while any(self.storage.model.outboxes.values()):  # ends: these steps send nothing
            self.storage.deliver_all(0)
            faults_stop(self.storage, continues=True)
        self.tables_are_as_the_model_says()
        self.laws_hold()
        self.storage.only_ends_are_awaited()


def test_messages_do_what_their_model_does(own_database: str) -> None:
    MessagesMachine.check(own_database, steps=40, factor=2)
