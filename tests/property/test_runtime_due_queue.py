"""Invariants of the due_queue."""

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from progressor.runtime.effects.due_queue import DueQueue
from tests.support.builders import make_due, seconds
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
                times = [known.pop(due.task_id) for due in taken]
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

    taken = {due.task_id for due in due_queue.take_due(SIZE_MAX)}

    assert taken == set(range(len(aheads)))
    assert due_queue.wait_seconds() is None
