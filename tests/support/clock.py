"""Clocks for tests: one that stands still until it is moved, and one that is wrong."""

import datetime as dt
import time

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
        self._now += duration
        self._elapsed += duration.total_seconds()


class JumpingClock(SystemClock):
    """The system's clock for a replica, and for PostgreSQL one that is `ahead` of it by now."""

    ahead = dt.timedelta()

    def pinned(self) -> dt.datetime | None:
        return self.now() + self.ahead


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


class FastClock(SystemClock):
    """Time since `begun_at`, `speed` times as fast, from START on; PostgreSQL's too.

    What is slept, by the monotonic clock, is not.
    """

    def __init__(self, speed: float, begun_at: float) -> None:
        self._speed = speed
        self._begun_at = begun_at

    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=(time.time() - self._begun_at) * self._speed)

    def pinned(self) -> dt.datetime | None:
        return self.now()
