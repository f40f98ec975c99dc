"""Live pages: each page that somebody watches is loaded again and again, once for all watchers.

What must hold: two watchers with the same identity and address cost the engine no more than one;
and many different pages together ask the engine at most `LOADS_PER_SECOND` times a second, each
more seldom the more there are. A watcher that is slow misses versions of a page, and never delays
others.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from typing import Any

from progressor import errors
from progressor.clock import Clock

INTERVAL_SECONDS = 0.5
"""Between two loads of a page, if few are watched."""

LOADS_PER_SECOND = 10.0
"""Of all pages together."""

Load = Callable[[], Awaitable[Mapping[str, Any]]]


@dataclasses.dataclass(slots=True, eq=False)
class Version:
    """What a page showed at an instant; ``error``: why it could not be loaded.

    ``rendered`` is for whoever renders it: the same text for watchers with the same look.
    """

    number: int
    loaded_at: float
    facts: Mapping[str, Any] | None
    error: errors.ProgressorError | None = None
    rendered: dict[Hashable, str] = dataclasses.field(default_factory=dict)


class _Page:
    """A page that is watched, and the task that loads it."""

    def __init__(self, task: asyncio.Task[None] | None = None) -> None:
        self.version: Version | None = None
        self.changed = asyncio.Event()
        self.watcher_count = 0
        self.task = task

    def show(self, version: Version) -> None:
        self.version = version
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Live:
    """The pages that are watched now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: dict[Hashable, _Page] = {}
        self.load_count = 0

    async def watch(self, key: Hashable, load: Load) -> AsyncGenerator[Version]:
        """Yield the versions of a page, until the watcher leaves; `load` is that of its key."""
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page()
            page.task = asyncio.create_task(self._load(page, load), name=f"live {key}")
        page.watcher_count += 1
        try:
            seen = 0
            while True:
                changed = page.changed
                if page.version is not None and page.version.number > seen:
                    seen = page.version.number
                    yield page.version
                else:
                    await changed.wait()
        finally:
            page.watcher_count -= 1
            if not page.watcher_count and page.task is not None:
                del self._pages[key]
                page.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await page.task

    async def _load(self, page: _Page, load: Load) -> None:
        number = 0
        while True:
            number += 1
            self.load_count += 1
            at = self._clock.monotonic()
            try:
                version = Version(number, at, await load())
            except errors.ProgressorError as error:
                version = Version(number, at, None, error)
            page.show(version)
            pause = max(INTERVAL_SECONDS, len(self._pages) / LOADS_PER_SECOND)
            await asyncio.sleep(pause)
