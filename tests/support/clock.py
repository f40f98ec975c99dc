"""Clocks for tests: one that stands still until it is moved, and one that is wrong."""

import datetime as dt

from progressor.clock import Clock, SystemClock

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class ManualClock:
    """Time that PostgreSQL, too, takes for now (`pinned`)."""

    def __init__(self, start: dt.datetime = START) -> None:
        self._now = start
        self._elapsed = 0.0

    def now(self) -> dt.datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def pinned(self) -> dt.datetime | None:
        return self._now

    def advance(self, duration: dt.timedelta) -> None:
        """Let time pass."""
        self._now += duration
        self._elapsed += duration.total_seconds()


class JumpingClock:
    """The system's clock for a replica, and for PostgreSQL one that is `ahead` of it by now."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.ahead = dt.timedelta()

    def now(self) -> dt.datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def pinned(self) -> dt.datetime | None:
        return self._clock.now() + self.ahead


class SkewedClock:
    """The clock of a replica that is `ahead` of another one, the system's unless told otherwise.

    PostgreSQL goes by the other.
    """

    def __init__(self, ahead: dt.timedelta, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.ahead = ahead

    def now(self) -> dt.datetime:
        return self._clock.now() + self.ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def pinned(self) -> dt.datetime | None:
        return self._clock.pinned()
