"""Invariants of the history cache: it returns what a reference list says; memory is bounded."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from progressor.domain.processes.event import Event
from progressor.domain.processes.process import Process
from progressor.runtime.step.history_cache import HistoryCache
from tests.support.builders import make_event, make_key, make_process

BYTES_MAX = 3000
NAMES = st.sampled_from("ab")
PAYLOADS = st.lists(st.binary(max_size=300), max_size=4)


class Histories(RuleBasedStateMachine):
    """Two processes with their true histories, and snapshots of them in one replica.

    Events are also recorded elsewhere, and processes are removed and created anew elsewhere: the
    replica learns of it only by what the next claim returns.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history_cache = HistoryCache(bytes_max=BYTES_MAX)
        self.histories: dict[str, list[Event]] = {"a": [], "b": []}
        self.init_task_ids = {"a": 1, "b": 2}
        self.next_id = 10

    def process(self, name: str) -> Process:
        """Return a process as a claim would now."""
        return make_process(
            key=make_key(name),
            last_event_id=len(self.histories[name]),
            init_task_id=self.init_task_ids[name],
        )

    def record(self, name: str, payloads: list[bytes]) -> tuple[Event, ...]:
        """Add events to the true history."""
        history = self.histories[name]
        self.next_id += 1
        new = tuple(
            make_event(event_id, payload=payload, task_id=self.next_id)
            for event_id, payload in enumerate(payloads, start=len(history) + 1)
        )
        history.extend(new)
        return new

    def create_anew(self, name: str, payloads: list[bytes]) -> None:
        """Remove a process and start another under its id."""
        self.next_id += 1
        self.init_task_ids[name] = self.next_id
        self.histories[name] = []
        self.record(name, payloads)

    @rule(name=NAMES, payloads=PAYLOADS, keep=st.none() | st.integers(0, 4))
    def settle_here(self, name: str, payloads: list[bytes], keep: int | None) -> None:
        before = self.process(name)
        new = self.record(name, payloads)
        self.history_cache.extend(before, self.process(name), new, keep=keep)

    @rule(name=NAMES, payloads=PAYLOADS, others=PAYLOADS)
    def settle_here_and_learn_of_it_late(
        self, name: str, payloads: list[bytes], others: list[bytes]
    ) -> None:
        before = self.process(name)
        new = self.record(name, payloads)
        self.record(name, others)
        self.history_cache.extend(before, self.process(name), new, keep=None)

    @rule(name=NAMES, payloads=PAYLOADS)
    def settle_elsewhere(self, name: str, payloads: list[bytes]) -> None:
        self.record(name, payloads)

    @rule(name=NAMES, payloads=PAYLOADS)
    def create_anew_elsewhere(self, name: str, payloads: list[bytes]) -> None:
        self.create_anew(name, payloads)

    @rule(name=NAMES)
    def create_anew_elsewhere_with_as_many_events(self, name: str) -> None:
        self.create_anew(name, [b"other" for _ in self.histories[name]])

    @rule(name=NAMES, first=st.integers(1, 5))
    def read(self, name: str, first: int) -> None:
        self.history_cache.remember(self.process(name), tuple(self.histories[name][first - 1 :]))

    @invariant()
    def what_is_recalled_is_the_history(self) -> None:
        for name, history in self.histories.items():
            for after in range(len(history) + 2):
                known = self.history_cache.recall(self.process(name), after=after)
                assert known is None or list(known) == history[after:]

    @invariant()
    def no_more_is_remembered_than_may_be(self) -> None:
        held = [
            sum(len(event.payload) for event in each.events)
            for each in self.history_cache._snapshots.values()
        ]
        assert sum(held) <= self.history_cache._size <= BYTES_MAX

    @invariant()
    def nothing_is_left_of_what_was_forgotten(self) -> None:
        sizes = [each.size for each in self.history_cache._snapshots.values()]
        assert self.history_cache._size == sum(sizes)


Histories.TestCase.settings = settings(stateful_step_count=30)
TestHistories: Any = Histories.TestCase
