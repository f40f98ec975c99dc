"""How many steps may start while a processor is unreachable, and after its return."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.processor.breaker import RAMP_FIRST, RAMP_SECONDS, UNLIMITED, Breaker, ramp
from tests.support.builders import seconds
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> Breaker:
    return Breaker(clock)


def test_nothing_starts_while_no_target_is_connected(breaker: Breaker, clock: ManualClock) -> None:
    breaker.cut(clock.monotonic())
    clock.advance(seconds(100_000))

    assert (breaker.allowance(), breaker.wake_seconds(), breaker.is_open) == (0, None, True)


def test_probes_come_one_at_a_time_with_a_pause_that_doubles_up_to_a_cap(
    breaker: Breaker, clock: ManualClock
) -> None:
    pauses = []
    breaker.refuse(0.0, None)
    for _ in range(10):
        pause = breaker.wake_seconds()
        assert pause is not None
        assert breaker.allowance() == 0
        pauses.append(round(pause, 3))
        clock.advance(seconds(pause))
        assert breaker.allowance() == 1
        breaker.take(1)
        assert breaker.allowance() == 0
        breaker.refuse(0.0, None)
        # Others were sent before it and are refused after it: one refusal.
        breaker.refuse(0.0, None)

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]


def test_a_failed_probe_is_followed_by_another(breaker: Breaker, clock: ManualClock) -> None:
    breaker.refuse(0.0, None)
    clock.advance(seconds(0.2))
    breaker.take(1)
    clock.advance(seconds(0.2))

    assert breaker.allowance() == 1


@pytest.mark.parametrize(("asked_for", "pause"), [(0, 0.2), (7, 7), (3600, 30)])
def test_the_processor_says_when_to_probe_up_to_the_cap(
    breaker: Breaker, asked_for: float, pause: float
) -> None:
    breaker.refuse(0.0, seconds(asked_for))

    assert breaker.wake_seconds() == pytest.approx(pause)


@pytest.mark.parametrize("refusing", [False, True])
def test_once_out_of_patience_it_lets_all_through(
    breaker: Breaker, clock: ManualClock, refusing: bool
) -> None:
    breaker.patience = seconds(60)
    if refusing:
        breaker.refuse(clock.monotonic(), seconds(3600))
    else:
        breaker.cut(clock.monotonic())
    clock.advance(seconds(59))
    almost, wake = breaker.allowance(), breaker.wake_seconds()
    clock.advance(seconds(1))

    assert (almost, breaker.allowance()) == (int(refusing), UNLIMITED)
    assert wake == pytest.approx(1)


def test_the_ramp_begins_once_and_ends(breaker: Breaker, clock: ManualClock) -> None:
    breaker.recover()
    clock.advance(seconds(1))
    breaker.recover()
    first = breaker.allowance()
    clock.advance(seconds(RAMP_SECONDS - 1))

    assert (first, breaker.allowance(), breaker.is_over) == (RAMP_FIRST, UNLIMITED, True)


@given(moves=st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 200)), max_size=60))
def test_whatever_is_wanted_the_ramp_is_kept(moves: list[tuple[float, int]]) -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    breaker.recover()
    started = 0
    for pause, wanted in moves:
        clock.advance(seconds(pause))
        count = min(wanted, breaker.allowance())
        breaker.take(count)
        started += count
        elapsed = clock.monotonic()
        if elapsed < RAMP_SECONDS:
            assert started <= RAMP_FIRST * (2 ** (int(elapsed) + 1) - 1)
            assert started <= ramp(elapsed)


def test_the_ramp_doubles_each_second() -> None:
    counts = [ramp(second) for second in range(5)]

    assert counts == [0, 100, 300, 700, 1500]
    assert ramp(0.5) == 50
