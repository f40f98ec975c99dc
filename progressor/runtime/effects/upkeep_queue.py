"""Jobs that need upkeep, which no settlement does: see ``runtime/jobs/upkeep.py``."""

import asyncio

from progressor.domain.processes.process import ProcessKey

SIZE_MAX = 10_000
"""Jobs that are kept; the scan finds the rest."""


class UpkeepQueue:
    """Leaders of jobs that this replica has to look after."""

    def __init__(self) -> None:
        self._leaders: dict[ProcessKey, None] = {}
        self.changed = asyncio.Event()
        """Set while the queue is not empty."""

    def add(self, *leaders: ProcessKey) -> None:
        """Add the leaders that fit."""
        for leader in leaders:
            if len(self._leaders) < SIZE_MAX:
                self._leaders[leader] = None
        if self._leaders:
            self.changed.set()

    def take(self) -> tuple[ProcessKey, ...]:
        """Take all leaders, the oldest first."""
        taken = tuple(self._leaders)
        self._leaders.clear()
        self.changed.clear()
        return taken
