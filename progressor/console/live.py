"""Live pages: each watched page is loaded again and again, once for all its watchers.

What must hold: two watchers with the same identity and address cost the engine no more than one;
and many different pages together ask the engine at most `LOADS_PER_SECOND` times a second, each
more seldom the more there are. A watcher that is slow misses versions of a page, and never delays
others. A load that fails because of a bug ends the page for all its watchers; the next watcher
starts it again.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from typing import Any

from progressor import errors
from progressor.clock import Clock

INTERVAL_SECONDS = 0.5
"""Between two loads of a page, if few are watched."""

LOADS_PER_SECOND = 10.0
"""Of all pages together."""

REST_SHARE = 4.0
"""How often as long as a load took the page then rests: a large job is loaded more seldom."""

KEPT_SECONDS = 1.0
"""For how long what was read once serves others, too."""

_KEPT_MAX = 200

_log = logging.getLogger(__name__)

Load = Callable[[], Awaitable[Mapping[str, Any]]]


@dataclasses.dataclass(slots=True, eq=False)
class Version:
    """What a page showed at an instant; ``error``: why it could not be loaded.

    ``rendered`` has the texts made of it, one for all watchers with the same look.
    """

    number: int
    loaded_at: float
    facts: Mapping[str, Any] | None
    error: errors.ProgressorError | None = None
    rendered: dict[Hashable, str] = dataclasses.field(default_factory=dict)


class _Page:
    """A page that is watched, and the task that loads it."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self.changed = asyncio.Event()
        self.watcher_count = 0

    def show(self, version: Version) -> None:
        self.version = version
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Live:
    """The pages that are watched now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pages: dict[Hashable, tuple[_Page, asyncio.Task[None]]] = {}
        self._kept: OrderedDict[Hashable, Version] = OrderedDict()
        self.load_count = 0

    @property
    def page_count(self) -> int:
        return len(self._pages)

    async def watch(self, key: Hashable, load: Load) -> AsyncGenerator[Version]:
        """Yield the versions of a page, until the watcher leaves; `load` is that of its key.

        It ends by itself if `load` raises anything but a `ProgressorError`, which is logged.
        """
        page, task = self._pages.get(key) or self._opened(key, load)
        page.watcher_count += 1
        seen = 0
        try:
            while not task.done():
                changed = page.changed
                if page.version is not None and page.version.number > seen:
                    seen = page.version.number
                    yield page.version
                else:
                    await changed.wait()
        finally:
            page.watcher_count -= 1
            if not page.watcher_count:
                self._close(key, page)
                task.cancel()
                # Not raised here: `_ended` has logged it.
                await asyncio.wait([task])

    async def read(self, key: Hashable, load: Load) -> Version:
        """Return what a page shows, or has shown within `KEPT_SECONDS`.

        Raises:
            RuntimeError: `load` has failed by a bug, which is logged.
        """
        self._forget_old()
        if key in self._kept:
            return self._kept[key]
        async with contextlib.aclosing(self.watch(key, load)) as versions:
            async for version in versions:
                self._kept[key] = version
                self._kept.move_to_end(key)
                self._forget_old()
                return version
        raise RuntimeError("the page cannot be loaded")

    def _forget_old(self) -> None:
        """Forget what was read for too long a time, or of too many pages."""
        oldest = self._clock.monotonic() - KEPT_SECONDS
        while self._kept:
            if len(self._kept) <= _KEPT_MAX and next(iter(self._kept.values())).loaded_at > oldest:
                break
            self._kept.popitem(last=False)

    def _opened(self, key: Hashable, load: Load) -> tuple[_Page, asyncio.Task[None]]:
        page = _Page()
        task = asyncio.create_task(self._load(page, load), name=f"live {key}")
        task.add_done_callback(lambda task: self._ended(key, page, task))
        self._pages[key] = (page, task)
        return page, task

    def _ended(self, key: Hashable, page: _Page, task: asyncio.Task[None]) -> None:
        self._close(key, page)
        page.changed.set()
        if not task.cancelled():
            _log.error("a page of the console cannot be loaded", exc_info=task.exception())

    def _close(self, key: Hashable, page: _Page) -> None:
        """Let the next watcher of a key open a page anew."""
        if key in self._pages and self._pages[key][0] is page:
            del self._pages[key]

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
            took = self._clock.monotonic() - at
            rest = max(INTERVAL_SECONDS, len(self._pages) / LOADS_PER_SECOND, REST_SHARE * took)
            await asyncio.sleep(rest)
