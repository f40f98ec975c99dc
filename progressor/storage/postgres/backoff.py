"""Backoff: the pauses between attempts to reach something unavailable.

They grow, so that what comes back is not knocked over at once, and they are spread, so that those
who lost it together do not return together.
"""

from collections.abc import Callable

SPREAD = 0.25
"""By which share of itself a pause may be longer or shorter."""


def steady() -> float:
    return 0.0


class Backoff:
    def __init__(
        self, *, first: float, longest: float, jitter: Callable[[], float] = steady
    ) -> None:
        assert 0 < first <= longest, f"pauses from {first} to {longest} do not grow"
        self._first, self._longest, self._jitter = first, longest, jitter
        self._next = first

    def pause(self) -> float:
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause * (1 + SPREAD * self._jitter())

    def reset(self) -> None:
        self._next = self._first
