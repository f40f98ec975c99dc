"""Invariants of retry."""

import dataclasses
import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.retry import next_delay

YEARS_10_000 = dt.timedelta(seconds=315_576_000_000)
DURATIONS = st.timedeltas(dt.timedelta(), YEARS_10_000)
SPREADS = st.floats(-1, 1)
POLICIES = st.builds(
    RetryPolicy,
    initial_interval=DURATIONS,
    coefficient=st.floats(1, allow_nan=False, allow_infinity=False) | st.floats(1, 10),
    interval_max=DURATIONS,
    jitter=st.floats(0, 1),
    attempts_max=st.integers(1, 10_000),
    elapsed_max=st.none() | DURATIONS,
    non_retryable_reasons=st.lists(st.sampled_from("ABC"), max_size=2).map(tuple),
)
REASONS = st.sampled_from("ABCD")
MICROSECOND = dt.timedelta(microseconds=1)


def delay_of(
    policy: RetryPolicy,
    attempt: int,
    *,
    reason: str = "D",
    elapsed: dt.timedelta = MICROSECOND * 0,
    spread: float = 0.0,
    retry_after: dt.timedelta | None = None,
) -> dt.timedelta | None:
    return next_delay(
        policy,
        attempt=attempt,
        reason=reason,
        elapsed=elapsed,
        spread=spread,
        retry_after=retry_after,
    )


@given(POLICIES, st.integers(1, 12_000), REASONS, DURATIONS, SPREADS, st.none() | DURATIONS)
def test_a_delay_is_never_negative_and_keeps_every_limit(
    policy: RetryPolicy,
    attempt: int,
    reason: str,
    elapsed: dt.timedelta,
    spread: float,
    retry_after: dt.timedelta | None,
) -> None:
    delay = delay_of(
        policy, attempt, reason=reason, elapsed=elapsed, spread=spread, retry_after=retry_after
    )

    if delay is None:
        return
    assert delay >= dt.timedelta()
    assert attempt < policy.attempts_max
    assert reason not in policy.non_retryable_reasons
    assert policy.elapsed_max is None or elapsed + delay <= policy.elapsed_max
    assert retry_after is None or delay >= retry_after


@given(POLICIES, st.integers(1, 10_000), SPREADS)
def test_a_delay_stays_within_the_jitter_of_its_interval(
    policy: RetryPolicy, attempt: int, spread: float
) -> None:
    policy = dataclasses.replace(policy, elapsed_max=None)
    middle = delay_of(policy, attempt)
    delay = delay_of(policy, attempt, spread=spread)

    assert (middle is None) == (delay is None)
    if middle is not None and delay is not None:
        # Of ten thousand years a float keeps no microseconds.
        rounding = MICROSECOND + middle * 1e-12
        assert middle <= policy.interval_max + rounding
        assert abs(delay - middle) <= middle * policy.jitter + rounding


@given(POLICIES, st.integers(1, 9_998))
def test_delays_do_not_shrink_from_one_attempt_to_the_next(
    policy: RetryPolicy, attempt: int
) -> None:
    policy = dataclasses.replace(policy, elapsed_max=None, attempts_max=10_000)
    delay, following = delay_of(policy, attempt), delay_of(policy, attempt + 1)

    assert delay is not None
    assert following is not None
    assert delay <= following


@given(POLICIES, SPREADS)
def test_attempts_come_to_an_end(policy: RetryPolicy, spread: float) -> None:
    assert delay_of(policy, policy.attempts_max, spread=spread) is None
