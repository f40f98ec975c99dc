"""A clock that stands still until a test moves it."""

import datetime as dt

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
