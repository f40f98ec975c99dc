"""Percentiles of a set of times, in milliseconds."""

from collections.abc import Iterable


def percentiles(seconds: Iterable[float]) -> dict[str, float]:
    """Return p50, p99 and the largest in milliseconds; all 0 where there are none."""
    ordered = sorted(seconds) or [0.0]

    def at(share: float) -> float:
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": 1000 * ordered[-1]}
