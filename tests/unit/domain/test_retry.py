"""Retry: whether another attempt follows, and when."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.retry import next_delay
from tests.support.builders import seconds

POLICY = RetryPolicy(
    initial_interval=seconds(1), coefficient=3.0, interval_max=seconds(10), jitter=0.0
)


def delay_of(policy: RetryPolicy = POLICY, **fields: Any) -> dt.timedelta | None:
    defaults: dict[str, Any] = {
        "attempt": 1,
        "reason": "UNAVAILABLE",
        "elapsed": seconds(0),
        "spread": 0.0,
    }
    return next_delay(policy, **defaults | fields)


@pytest.mark.parametrize(("attempt", "expected"), [(1, 1), (2, 3), (3, 9), (4, 10), (5, 10)])
def test_waits_grow_by_the_coefficient_up_to_the_longest(attempt: int, expected: float) -> None:
    assert delay_of(attempt=attempt) == seconds(expected)


def test_a_reason_that_is_not_retryable_ends_it() -> None:
    policy = dataclasses.replace(POLICY, non_retryable_reasons=("NO_MONEY",))

    assert delay_of(policy, reason="NO_MONEY") is None


def test_the_processor_may_ask_for_more_patience_than_the_policy_has() -> None:
    assert delay_of(retry_after=seconds(60)) == seconds(60)


@pytest.mark.parametrize(("elapsed", "expected"), [(9.0, seconds(1)), (9.1, None)])
def test_an_attempt_that_would_begin_too_late_is_not_made(
    elapsed: float, expected: dt.timedelta | None
) -> None:
    policy = dataclasses.replace(POLICY, elapsed_max=seconds(10))

    assert delay_of(policy, elapsed=seconds(elapsed)) == expected


@pytest.mark.parametrize("coefficient", [10.0, 10], ids=["float", "whole"])
def test_an_interval_that_overflows_is_the_longest_wait(coefficient: float) -> None:
    policy = dataclasses.replace(POLICY, coefficient=coefficient, attempts_max=100_000)

    assert delay_of(policy, attempt=50_000) == seconds(10)
