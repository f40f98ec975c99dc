"""Where time comes from: the one place that reads a clock."""

import datetime as dt
import time
from typing import Protocol


class Clock(Protocol):
    """The clock of the engine; injected, so that tests control time."""

    def now(self) -> dt.datetime:
        """Return this replica's idea of the instant, aware, UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations and local deadlines."""

    def pinned(self) -> dt.datetime | None:
        """Return the instant that PostgreSQL shall take for now; None: its own clock."""


class SystemClock:
    """The clock of production: PostgreSQL keeps its own time."""

    def now(self) -> dt.datetime:
        """Return the system's time, aware, UTC."""
        return dt.datetime.now(dt.UTC)

    def monotonic(self) -> float:
        """Return the system's monotonic seconds."""
        return time.monotonic()

    def pinned(self) -> dt.datetime | None:
        """Return None: replicas compare instants by PostgreSQL's clock alone."""
        return None
