"""Which namespaces are paused, as a replica knows it: whatever is read late, it is not fooled."""

import dataclasses
import datetime as dt

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import Pause
from progressor.storage.namespaces.pauses import Pauses

NAME = "orders"
PAUSE = Pause(paused_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), reason="why")
RUNNING = Namespace(name=NAME, processor_targets=("a:1",), revision=1)


class Pausing(RuleBasedStateMachine):
    """One namespace that is paused and resumed, and what a replica reads of it.

    A heartbeat and a read see the state of the moment at which they are sent, and are taken in
    later: heartbeats in order, reads of single namespaces in any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states = [RUNNING]  # by revision, from 1
        self.pauses = Pauses()
        self.known = RUNNING
        self.beat: Namespace | None = None
        self.last_beat = RUNNING
        self.reads: list[Namespace] = []
        self.refresh: tuple[int, Namespace] | None = None

    @property
    def current(self) -> Namespace:
        return self.states[-1]

    @rule()
    def change(self) -> None:
        pause = None if self.current.pause else PAUSE
        revision = len(self.states) + 1
        self.states.append(dataclasses.replace(self.current, pause=pause, revision=revision))

    @precondition(lambda self: self.beat is None)
    @rule()
    def send_heartbeat(self) -> None:
        self.beat = self.current

    @precondition(lambda self: self.beat is not None)
    @rule()
    def take_in_heartbeat(self) -> None:
        assert self.beat is not None
        self.pauses.heartbeat([NAME] if self.beat.pause else [])
        self.last_beat, self.beat = self.beat, None

    @rule()
    def notify(self) -> None:
        self.pauses.changed.set()

    @rule()
    def read(self) -> None:
        self.reads.append(self.current)

    @rule()
    def read_at_once(self) -> None:
        self._learn(self.current)

    @precondition(lambda self: self.beat is None)
    @rule()
    def heartbeat_at_once(self) -> None:
        self.send_heartbeat()
        self.take_in_heartbeat()

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def take_in_read(self, data: st.DataObject) -> None:
        self._learn(self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1))))

    @precondition(lambda self: self.refresh is None and self.pauses.changed.is_set())
    @rule()
    def begin_refresh(self) -> None:
        self.refresh = self.pauses.begin_reading(), self.current

    @precondition(lambda self: self.refresh is not None)
    @rule()
    def end_refresh(self) -> None:
        assert self.refresh is not None
        (mark, found), self.refresh = self.refresh, None
        self._learn(found)
        self.pauses.end_reading(mark)

    @invariant()
    def what_has_been_paused_since_before_the_last_heartbeat_is_held(self) -> None:
        if all(it.pause for it in self.states[self.last_beat.revision - 1 :]):
            assert NAME in self.pauses.names

    @rule()
    def take_resumed(self) -> None:
        was_held = NAME in self.pauses.names
        taken = self.pauses.take_resumed()
        assert (NAME in taken) == (was_held and NAME not in self.pauses.names)

    def teardown(self) -> None:
        for _ in range(2):
            if self.beat is not None:
                self.take_in_heartbeat()
            if self.refresh is not None:
                self.end_refresh()
            self.send_heartbeat()
            self.take_in_heartbeat()
            if self.pauses.changed.is_set():
                self.begin_refresh()
                self.end_refresh()
        self.pauses.take_resumed()
        assert (NAME in self.pauses.names) == (self.current.pause is not None)

    def _learn(self, found: Namespace) -> None:
        # As `Namespaces._remember` does.
        if found.revision > self.known.revision:
            self.known = found
            self.pauses.learn(found)


TestPausing = Pausing.TestCase


def test_a_namespace_that_is_paused_again_before_its_resume_was_taken_stays_held() -> None:
    pauses = Pauses()
    pauses.learn(dataclasses.replace(RUNNING, pause=PAUSE))
    pauses.learn(RUNNING)
    pauses.heartbeat([NAME])

    assert pauses.take_resumed() == ()
    assert NAME in pauses.names
