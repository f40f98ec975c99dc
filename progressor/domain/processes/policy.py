"""Policies: when a failed attempt is followed by another, what becomes of a zombie; and pauses."""

import dataclasses
import datetime as dt
import enum

REASONS_MAX = 100
REASON_BYTES_MAX = 256


class ZombiePolicy(enum.StrEnum):
    """What is done with a task whose lease was lost."""

    RETRY = "retry"
    FAIL = "fail"


class OnError(enum.StrEnum):
    """What becomes of what waits on a process that breaks.

    HOLD: what was acknowledged stays, for when the process comes back. CANCEL: it is cancelled.
    """

    HOLD = "hold"
    CANCEL = "cancel"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a step is tried, and the waits between the attempts.

    A wait is ``initial_interval * coefficient ** (attempt - 1)``, at most ``interval_max``, plus or
    minus a random part of up to ``jitter`` (0 to 1) of itself. ``attempts_max`` counts all
    attempts; 1: never retried. ``elapsed_max`` limits the time that attempts and these waits take
    in all, and no other waits, such as for a processor that cannot be reached; None: no limit.
    """

    initial_interval: dt.timedelta = dt.timedelta(milliseconds=200)
    coefficient: float = 2.0
    interval_max: dt.timedelta = dt.timedelta(seconds=30)
    jitter: float = 0.2
    attempts_max: int = 10
    elapsed_max: dt.timedelta | None = None
    non_retryable_reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("initial_interval", "interval_max", "elapsed_max"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, dt.timedelta):
                message = f"{name} must be a timedelta, got {value!r}"
                raise TypeError(message)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Since when a namespace is paused, why, and by whom; no step of it begins.

    ``refuses_requests``: Start, Call and Notify are refused; otherwise they are admitted and wait.
    """

    paused_at: dt.datetime
    reason: str
    author: str = ""
    refuses_requests: bool = False


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

    `attempt`, from 1, is the one that failed, `elapsed` the time that counts until now, and
    `spread` a random number, -1 .. 1, that places the wait within the jitter. The processor does
    not want to be asked again before `retry_after`.
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
