"""Bounds the memory of an engine that runs for months: what the collector and the allocator keep.

Python frees unreferenced objects at once, and the engine leaves no reference cycles behind a
request, so the collector has little to do and runs rarely. It is needed for cycles in libraries, or
undiscovered ones; so a full collection runs when memory has grown, or after ten minutes.
The allocator keeps freed memory for later, and gives it back only where it lies at the end of a
heap: it is asked for the rest. What it keeps even there grows with the largest message, in each of
its heaps, unless it is given a limit.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

from progressor.clock import Clock

LOOK_SECONDS = 5.0
COLLECT_SECONDS = 600.0
GROWTH_BYTES = 16 * 1024 * 1024
"""How far memory may grow above what the last collection left, before the next one."""

FREED_BYTES = 4 * 1024 * 1024
"""How much a trim must release for the next look to try again."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_APART_BYTES = 4 * 1024 * 1024
_KEPT_BYTES = 8 * 1024 * 1024
_STATM = Path("/proc/self/statm")


def tame_collector() -> None:
    """Let the garbage collector look at less, and less often.

    Objects that exist once the engine is built live forever; those of a step are freed by their
    reference counts. Looking at all of them every 700 allocations took 4 % of the engine's time,
    and a tenth with the caches it cools (2026-11-20, 2 cores, 64 callers).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def resident_bytes() -> int:
    """Return how much memory this process occupies; 0 if the system does not say."""
    with contextlib.suppress(OSError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def limit_allocator() -> None:
    """Make the allocator map large messages separately, and keep less free memory."""
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt  # of glibc; others give back by themselves
        set_option(_M_MMAP_THRESHOLD, _APART_BYTES)
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def allocators_trim() -> Callable[[], object]:
    """Return a function that makes the allocator release unused memory; call it in a thread."""
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        return lambda: trim(0)
    return lambda: None


class Memory:
    """Releases memory: first what is already free, then what a full collection frees."""

    def __init__(
        self,
        *,
        clock: Clock,
        resident: Callable[[], int],
        trim: Callable[[], object],
        collect: Callable[[], object],
    ) -> None:
        """Look at nothing yet.

        Args:
            clock: For the time between two collections.
            resident: Returns the bytes in use.
            trim: Gives back what is free; called in a thread.
            collect: Collects all garbage.
        """
        self._clock = clock
        self._resident = resident
        self._trim = trim
        self._collect = collect
        self._floor = resident()
        self._collected_at = clock.monotonic()
        self._is_shrinking = False

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Give memory back if it has grown, or if the last time was long ago."""
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
