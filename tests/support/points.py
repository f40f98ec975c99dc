"""Waiting for named points that the engine passes, instead of sleeping."""

import asyncio
from typing import Any

from progressor.worker.observer import Observers

PATIENCE_SECONDS = 30.0


class Points:
    """Records what an engine tells its observers; waits for what is to come.

    Points: claimed, answered, settled, fenced, abandoned, admitted, scan_found, timers_claimed,
    backlog_claimed, zombie_collected, reply_fetched, notification_lost, scanned, scan_failed, batch.
    """

    def __init__(self) -> None:
        self.observers = Observers()
        self.observers.add(self._note)
        self.passed: list[tuple[str, dict[str, Any]]] = []
        self._condition = asyncio.Event()

    def _note(self, point: str, facts: dict[str, Any]) -> None:
        self.passed.append((point, facts))
        self._condition.set()

    def count(self, point: str, **facts: object) -> int:
        """Return how often a point was passed with these facts."""
        return sum(
            1
            for name, found in self.passed
            if name == point and all(found.get(key) == value for key, value in facts.items())
        )

    async def wait(self, point: str, count: int = 1, **facts: object) -> None:
        """Wait until a point was passed `count` times with these facts, since the beginning."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.count(point, **facts) < count:
                self._condition.clear()
                await self._condition.wait()
