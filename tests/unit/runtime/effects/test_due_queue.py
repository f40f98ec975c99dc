"""The due queue: what is due when."""

import pytest

from progressor.runtime.effects.due_queue import DueQueue
from progressor.storage.processes.settlements import Due
from tests.support.builders import make_due, seconds
from tests.support.clock import START, ManualClock


class Harness:
    """A due queue of at most two tasks within 5 s."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.due_queue = DueQueue(clock=self.clock, horizon=seconds(5), size_max=2)

    def add(self, task_id: int, ahead: float) -> Due:
        due = make_due(task_id, due_at=START + seconds(ahead))
        self.due_queue.add(due, as_of=START)
        return due

    def taken(self, limit: int = 10) -> list[int]:
        return [due.task_id for due in self.due_queue.take_due(limit)]


def test_a_task_is_not_taken_before_its_time() -> None:
    harness = Harness()
    harness.add(1, ahead=2)
    harness.clock.advance(seconds(2))

    assert harness.taken() == []


def test_the_longest_overdue_goes_first() -> None:
    harness = Harness()
    harness.add(1, ahead=2)
    harness.add(2, ahead=1)
    harness.clock.advance(seconds(3))

    assert (harness.taken(limit=1), harness.taken(limit=1)) == ([2], [1])


def test_what_lies_too_far_ahead_is_left_to_the_scan() -> None:
    harness = Harness()

    harness.add(1, ahead=5.001)

    assert harness.due_queue.wait_seconds() is None


def test_what_does_not_fit_is_left_to_the_scan() -> None:
    harness = Harness()
    for task_id in (1, 2, 3):
        harness.add(task_id, ahead=1)
    harness.clock.advance(seconds(2))

    assert harness.taken() == [1, 2]


def test_a_task_reported_twice_is_taken_once() -> None:
    harness = Harness()
    harness.add(1, ahead=1)
    harness.add(1, ahead=2)
    harness.clock.advance(seconds(3))

    assert harness.taken() == [1]


def test_a_task_can_come_back_after_it_was_taken() -> None:
    harness = Harness()
    harness.add(1, ahead=0)
    harness.clock.advance(seconds(1))
    harness.taken()

    harness.add(1, ahead=0)
    harness.clock.advance(seconds(1))

    assert harness.taken() == [1]


@pytest.mark.parametrize(("ahead", "changes"), [(1.0, True), (3.0, False)])
def test_a_waiter_is_woken_only_by_an_earlier_task(ahead: float, changes: bool) -> None:
    harness = Harness()
    harness.add(1, ahead=2)
    harness.due_queue.changed.clear()

    harness.add(2, ahead=ahead)

    assert harness.due_queue.changed.is_set() is changes
