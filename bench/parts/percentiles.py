"""Percentiles of a set of times."""

from collections.abc import Iterable, Sequence

SHARES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)
"""What a curve shows: the share of calls that are answered within its time."""


def curve(seconds: Iterable[float], shares: Sequence[float] = SHARES) -> list[float]:
    """Return the time of each share in milliseconds; all 0 without times."""
    ordered = sorted(seconds) or [0.0]
    last = len(ordered) - 1
    return [1000 * ordered[min(last, int(share * len(ordered)))] for share in shares]
