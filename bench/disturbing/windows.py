"""Windows: counts answers in a period, and finds when the rate has recovered."""

import bisect
import math
from collections.abc import Iterable, Sequence

KEPT = 0.9
"""The share of the earlier rate at which it counts as recovered."""

_STEP_SECONDS = 0.1
_SPAN_SECONDS = 1.0

Instants = Sequence[float]


def rate(instants: Instants, begun_at: float, ended_at: float) -> float:
    """Return how many of the sorted instants there are per second between two others."""
    count = bisect.bisect(instants, ended_at) - bisect.bisect(instants, begun_at)
    return count / max(ended_at - begun_at, 1e-9)


def per_second(instants: Instants, begun_at: float, ended_at: float) -> list[int]:
    return [
        round(rate(instants, begun_at + second, begun_at + second + 1))
        for second in range(int(ended_at - begun_at))
    ]


def first_after(instants: Instants, at: float) -> float | None:
    """Return the seconds from an instant to the next one; None without one."""
    index = bisect.bisect(instants, at)
    return instants[index] - at if index < len(instants) else None


def last_of_all(each: Iterable[Instants], at: float) -> float | None:
    """Return the seconds from an instant until all callers had an answer; None if one had none."""
    found = [first_after(instants, at) for instants in each]
    return None if None in found else max(filter(None, found), default=0.0)


def back_after(instants: Instants, at: float, until: float, *, before: float) -> float | None:
    """Return the seconds from `at` to the first second with KEPT of the earlier rate.

    None if there is none until `until`.
    """
    steps = math.floor((until - _SPAN_SECONDS - at) / _STEP_SECONDS)
    for step in range(steps + 1):
        begun_at = at + step * _STEP_SECONDS
        if rate(instants, begun_at, begun_at + _SPAN_SECONDS) >= KEPT * before:
            return step * _STEP_SECONDS
    return None
