"""Runs an engine in this process until a signal comes, then drains it."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from progressor.cli.input.signals import signals, until_left
from progressor.clock import Clock, SystemClock
from progressor.engine import engine as app
from progressor.settings.config import Config
from progressor.telemetry.logs.setup import whole_log

LOOK_SECONDS = 5.0
COLLECT_SECONDS = 600.0
GROWTH_BYTES = 16 * 1024 * 1024
"""How much memory may grow after a collection, before the next one."""

FREED_BYTES = 4 * 1024 * 1024
"""How much a trim must release for the next check to trim again."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_APART_BYTES = 4 * 1024 * 1024
_KEPT_BYTES = 8 * 1024 * 1024
_STATM = Path("/proc/self/statm")

_log = logging.getLogger(__name__)


async def host(
    config: Config,
    *,
    work: Callable[[app.Engine], Coroutine[Any, Any, None]],
    open_engine: Callable[[Config], AbstractAsyncContextManager[app.Engine]] = app.engine,
    one_of_many: bool = False,
) -> None:
    """Run an engine and `work` until a signal or the end of `work`, then drain the engine.

    A second signal ends this process at once; other replicas collect its steps, as after a crash.
    If it is `one_of_many` that share a log, each line has the replica's name.

    Raises:
        ExceptionGroup: `work` failed, or the engine broke.
    """
    name = config.replica.name if one_of_many else ""
    limit_allocator()
    leaving = asyncio.Event()
    with (
        whole_log(level=config.log.level, log_format=config.log.format, replica=name),
        signals(leaving),
    ):
        if not one_of_many:
            warn_of_exposure(config)
        async with open_engine(config) as engine:
            tame_collector()
            memory = Memory(
                clock=SystemClock(),
                resident=resident_bytes,
                trim=allocators_trim(),
                collect=gc.collect,
            )
            await until_left(leaving, work(engine), engine.failed(), memory.run())
            _log.info("engine drains", extra={"addresses": engine.addresses})
        _log.info("engine stopped")


def warn_of_exposure(config: Config) -> None:
    """Log a warning if other machines may reach the engine without credentials."""
    if config.open_addresses:
        _log.warning(
            "access control is off: anyone who can reach the engine may do anything",
            extra={"addresses": config.open_addresses, "advice": "set access.enabled"},
        )


def tame_collector() -> None:
    """Make the garbage collector examine fewer objects, and less often.

    The objects of a built engine live forever; those of a step are freed by their reference counts.
    Examining all of them every 700 allocations took 4 % of the engine's time, and a tenth with the
    cache misses that it causes (2026-11-20, 2 cores, 64 callers).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if it is unknown."""
    with contextlib.suppress(OSError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def limit_allocator() -> None:
    """Make the allocator map large messages separately, and keep less free memory."""
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt  # of glibc; other allocators release by themselves
        set_option(_M_MMAP_THRESHOLD, _APART_BYTES)
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def allocators_trim() -> Callable[[], object]:
    """Return a function that makes the allocator release unused memory; call it in a thread."""
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        return lambda: trim(0)
    return lambda: None


class Memory:
    """Bounds the memory of an engine that runs for months.

    The engine leaves no reference cycles behind a request, so the garbage collector runs rarely.
    Cycles in libraries, or undiscovered ones, still need it: a full collection runs when memory has
    grown, or every ten minutes. The allocator keeps freed memory unless it is at the end of a heap,
    so it is first asked to trim the rest; what it keeps would grow with the largest message.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        resident: Callable[[], int],
        trim: Callable[[], object],
        collect: Callable[[], object],
    ) -> None:
        """Watch the memory of this process, of which `resident` returns the bytes.

        `trim`, which releases free memory, is called in a thread; `collect` collects all garbage.
        """
        self._resident, self._trim, self._collect = resident, trim, collect
        self._clock = clock
        self._floor = resident()
        self._collected_at = clock.monotonic()
        self._is_shrinking = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Release memory if it has grown, or if the last collection was long ago."""
        now, resident = self._clock.monotonic(), self._resident()
        self._floor = min(self._floor, resident)
        is_time = now - self._collected_at >= COLLECT_SECONDS
        if resident - self._floor < GROWTH_BYTES and not is_time and not self._is_shrinking:
            return
        await asyncio.to_thread(self._trim)
        if is_time or self._resident() - self._floor >= GROWTH_BYTES:
            self._collect()
            self._collected_at = now
            await asyncio.to_thread(self._trim)
        self._floor = self._resident()
        self._is_shrinking = resident - self._floor >= FREED_BYTES
