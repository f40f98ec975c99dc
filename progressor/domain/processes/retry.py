"""Retry: whether a failed attempt is followed by another, and when."""

import datetime as dt

from progressor.domain.processes.policy import RetryPolicy


def next_delay(
    policy: RetryPolicy,
    *,
    attempt: int,
    reason: str,
    elapsed: dt.timedelta,
    spread: float,
    retry_after: dt.timedelta | None = None,
) -> dt.timedelta | None:
    """Return how long to wait before the next attempt; None if there is none.

    Args:
        policy: The policy of the namespace for this task type.
        attempt: The attempt that failed, from 1.
        reason: Why it failed.
        elapsed: Since the first attempt began.
        spread: A random number, -1 .. 1, that places the wait within the jitter.
        retry_after: The earliest that the processor wants to be asked again.
    """
    if attempt >= policy.attempts_max or reason in policy.non_retryable_reasons:
        return None
    interval = _interval(policy, attempt)
    delay = dt.timedelta(seconds=interval * (1 + policy.jitter * spread))
    if retry_after is not None:
        delay = max(delay, retry_after)
    if policy.elapsed_max is not None and elapsed + delay > policy.elapsed_max:
        return None
    return delay


def _interval(policy: RetryPolicy, attempt: int) -> float:
    longest = policy.interval_max.total_seconds()
    try:
        grown = policy.initial_interval.total_seconds() * policy.coefficient ** (attempt - 1)
    except OverflowError:
        return longest
    return min(grown, longest)
