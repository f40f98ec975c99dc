"""Invariants of the due queue and of the history cache."""

import datetime as dt
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from progressor.domain.processes.event import Event
from progressor.domain.processes.process import Process
from progressor.runtime.effects.queues import DueQueue
from progressor.runtime.step.histories import HistoryCache
from tests.support.builders import make_due, make_event, make_key, make_process, seconds
from tests.support.clock import START, ManualClock

HORIZON = seconds(5)
SIZE_MAX = 2
ADDED = st.tuples(st.integers(1, 6), st.integers(-3, 7).map(seconds))
PASSED = st.integers(0, 4).map(seconds)
STEPS = st.lists(ADDED | PASSED | st.integers(1, 3).map(lambda limit: (limit,)), max_size=30)
LEAST = seconds(0.001)


@given(STEPS)
def test_tasks_come_once_in_their_order_never_early_and_no_more_than_fit(
    steps: list[tuple[int, dt.timedelta] | dt.timedelta | tuple[int]],
) -> None:
    clock = ManualClock()
    due_queue = DueQueue(clock=clock, horizon=HORIZON, size_max=SIZE_MAX)
    known: dict[int, dt.datetime] = {}

    for step in steps:
        match step:
            case (int(task_id), dt.timedelta() as ahead):
                due_at = clock.now() + ahead
                due_queue.add(make_due(task_id, due_at=due_at), as_of=clock.now())
                fits = ahead <= HORIZON and len(known) < SIZE_MAX and task_id not in known
                if fits:
                    # What is overdue already is due from when it was told of.
                    known[task_id] = max(due_at, clock.now())
            case dt.timedelta() as passed:
                clock.advance(passed)
            case (int(limit),):
                # What is due now comes a moment later at the latest, and not before.
                taken = due_queue.take_due(limit)
                times = [known.pop(each.due.task_id) for each in taken]
                assert len(taken) <= limit
                assert times == sorted(times)
                assert all(time < clock.now() for time in times)
                late = [time for time in known.values() if time < clock.now() - LEAST]
                assert not late or len(taken) == limit

    wait = due_queue.wait_seconds()
    assert (wait is None) == (not known)
    if wait is not None:
        first = (min(known.values()) - clock.now()).total_seconds()
        assert 0 <= wait <= max(0.0, first) + LEAST.total_seconds()
        assert wait >= first or first <= 0


@given(st.lists(st.integers(0, 3).map(seconds), min_size=1, max_size=SIZE_MAX))
def test_everything_that_fits_is_taken(aheads: list[dt.timedelta]) -> None:
    clock = ManualClock()
    due_queue = DueQueue(clock=clock, horizon=HORIZON, size_max=SIZE_MAX)
    for task_id, ahead in enumerate(aheads):
        due_queue.add(make_due(task_id, due_at=START + ahead), as_of=START)
    clock.advance(HORIZON)

    taken = {each.due.task_id for each in due_queue.take_due(SIZE_MAX)}

    assert taken == set(range(len(aheads)))
    assert due_queue.wait_seconds() is None


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
        history = self.histories[name]
        self.next_id += 1
        new = tuple(
            make_event(event_id, payload=payload, task_id=self.next_id)
            for event_id, payload in enumerate(payloads, start=len(history) + 1)
        )
        history.extend(new)
        return new

    def create_anew(self, name: str, payloads: list[bytes]) -> None:
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
