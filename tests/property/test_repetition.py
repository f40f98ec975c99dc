"""Invariants of repetition in the log: every line is logged or counted, floods are held back."""

import collections
import logging

from hypothesis import given
from hypothesis import strategies as st

from progressor.telemetry.logs.repetition import REPEATED_MAX, WINDOW_SECONDS, Repetition
from tests.support.runtime.timers import ManualTimers

LINES = st.lists(
    st.tuples(st.sampled_from(["away", "full", "lost"]), st.sampled_from([0.0, 0.1, 3.0, 12.0])),
    max_size=200,
)
"""Messages, and how long after the one before."""


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("room", logging.WARNING, "", 0, message, None, None)


def repeated(said: logging.LogRecord) -> int:
    return int(getattr(said, "repeated", 0))


@given(LINES)
def test_each_line_is_logged_or_counted(lines: list[tuple[str, float]]) -> None:
    timers = ManualTimers()
    repetition = Repetition(monotonic=timers.monotonic)
    said: list[logging.LogRecord] = []
    for message, pause in lines:
        timers.advance(pause)
        said += repetition.take(record(message))
    said += repetition.close()

    accounted = collections.Counter[str]()
    for each in said:
        accounted[each.getMessage()] += repeated(each) or 1
    assert accounted == collections.Counter(message for message, _ in lines)


@given(LINES)
def test_the_first_line_of_a_window_is_logged_at_once_and_a_flood_is_held_back(
    lines: list[tuple[str, float]],
) -> None:
    timers = ManualTimers()
    repetition = Repetition(monotonic=timers.monotonic)
    said_at: dict[str, list[float]] = collections.defaultdict(list)
    for message, pause in lines:
        timers.advance(pause)
        quiet = all(timers.now - at >= WINDOW_SECONDS for at in said_at[message])
        own = record(message)
        told = repetition.take(own)
        assert own in told or not quiet
        if own in told:
            said_at[message].append(timers.now)

    for times in said_at.values():
        for first in times:
            within = [at for at in times if first <= at < first + WINDOW_SECONDS]
            assert len(within) <= 2 * REPEATED_MAX
