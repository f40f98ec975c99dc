"""Policies: when a failed attempt is followed by another, and what becomes of a zombie."""

import dataclasses
import datetime as dt
import enum


class ZombiePolicy(enum.StrEnum):
    """What is done with a task whose lease was lost."""

    RETRY = "retry"
    FAIL = "fail"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a step is tried, and the waits between the attempts.

    A wait is ``initial_interval * coefficient ** (attempt - 1)``, at most ``interval_max``, plus or
    minus a random part of up to ``jitter`` (0 to 1) of itself. ``attempts_max`` counts all
    attempts; 1: never retried. ``elapsed_max`` counts from the first attempt; None: no limit.
    """

    initial_interval: dt.timedelta = dt.timedelta(milliseconds=100)
    coefficient: float = 2.0
    interval_max: dt.timedelta = dt.timedelta(seconds=30)
    jitter: float = 0.2
    attempts_max: int = 8
    elapsed_max: dt.timedelta | None = None
    non_retryable_reasons: tuple[str, ...] = ()
