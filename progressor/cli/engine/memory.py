"""Bounds the memory of an engine that runs for months.

Python frees unreferenced objects at once, and the engine leaves no reference cycles behind a
request, so the garbage collector has little to do and runs rarely. Cycles in libraries, or
undiscovered ones, still need it: a full collection runs when memory has grown, or every ten
minutes. The allocator keeps freed memory unless it is at the end of a heap, so it is asked to trim
the rest. Without a limit, what it keeps grows with the largest message, in each of its heaps.
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
"""How much memory may grow after a collection, before the next one."""

FREED_BYTES = 4 * 1024 * 1024
"""How much a trim must release for the next check to trim again."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_APART_BYTES = 4 * 1024 * 1024
_KEPT_BYTES = 8 * 1024 * 1024
_STATM = Path("/proc/self/statm")


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
    """Releases memory: first by a trim, and if that is not enough, by a full collection."""

    def __init__(
        self,
        *,
        clock: Clock,
        resident: Callable[[], int],
        trim: Callable[[], object],
        collect: Callable[[], object],
    ) -> None:
        """Watch the memory of this process.

        Args:
            clock: For the time between two collections.
            resident: Returns the resident memory in bytes.
            trim: Releases free memory; called in a thread.
            collect: Runs a full garbage collection.
        """
        self._resident, self._trim, self._collect = resident, trim, collect
        self._clock = clock
        self._floor = resident()
        self._collected_at = clock.monotonic()
        self._is_shrinking = False

    async def run(self) -> None:
        """Check memory every few seconds, until cancelled."""
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
