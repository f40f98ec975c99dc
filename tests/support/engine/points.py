"""Waiting for named points that the engine passes, instead of sleeping."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from progressor.runtime.core.context import Observers

PATIENCE_SECONDS = 30.0
"""After which every wait of a test ends, by a TimeoutError unless it says otherwise."""

_LOOK_SECONDS = 0.005

Facts = dict[str, Any]


class Points:
    """Records what an engine tells its observers; waits for what is to come.

    Points: admitted, awaited, claimed, answered, settled, fenced, abandoned, revoked, scan_found,
    timers_claimed, backlog_claimed, zombie_collected, reply_fetched, notified,
    notification_lost, scanned, scan_failed, batch, beat, pauses_read, resumed.
    """

    def __init__(self) -> None:
        self.observers = Observers()
        self.observers.add(self._note)
        self._passed: dict[str, list[Facts]] = {}
        self.news = asyncio.Event()
        """Set when the next point is passed, whichever it is; another one comes in its place."""

    def passed(self, point: str, **facts: object) -> list[Facts]:
        return [found for found in self._passed.get(point, ()) if _has(found, facts)]

    def count(self, point: str, **facts: object) -> int:
        return len(self.passed(point, **facts))

    async def wait(self, point: str, count: int = 1, **facts: object) -> Sequence[Facts]:
        """Wait until a point was passed `count` times with these facts, since the beginning.

        Returns:
            The facts of those times, in order.
        """
        found: list[Facts] = []
        looked_at = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                news = self.news
                all_of_them = self._passed.get(point, [])
                found.extend(each for each in all_of_them[looked_at:] if _has(each, facts))
                looked_at = len(all_of_them)
                if len(found) >= count:
                    return found[:count]
                await news.wait()

    def _note(self, point: str, facts: Facts) -> None:
        self._passed.setdefault(point, []).append(facts)
        told, self.news = self.news, asyncio.Event()
        told.set()


async def eventually(
    holds: Callable[[], object | Awaitable[object]], *, pause: float = _LOOK_SECONDS
) -> Any:
    """Wait until something holds of which no point tells, and return it; read again and again."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(pause)


def _has(found: Facts, facts: Facts) -> bool:
    return all(found.get(name) == value for name, value in facts.items())
