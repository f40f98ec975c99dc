"""Sizes: how near the largest steps come to what their processors take.

A history that is sent whole grows until its processor no longer accepts it. Sizes from half of that
limit on are reported by a metric, and by the heartbeat, from which ``progressor doctor`` reads it.
"""

from collections.abc import Mapping

from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.replica import StepSize

SHARE_TOLD = 0.5
"""The share of its limit from which on a step is reported."""

TOLD_SECONDS = 600.0
"""For how long a step is reported, unless a larger one follows."""


class Sizes:
    """The largest recent steps, by namespace."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Bounded by the namespaces that have been asked for.
        self._largest: dict[str, tuple[float, StepSize]] = {}

    def note(self, key: ProcessKey, *, size: int, limit: int) -> None:
        """Record a step of `size` bytes, whose processor accepts `limit`."""
        if size < SHARE_TOLD * limit:
            return
        found = StepSize(process_id=key.process_id, size_bytes=size, limit_bytes=limit)
        now = self._clock.monotonic()
        noted_at, largest = self._largest.get(key.namespace, (now - TOLD_SECONDS, found))
        if now - noted_at >= TOLD_SECONDS or found.share >= largest.share:
            self._largest[key.namespace] = now, found

    def largest(self) -> Mapping[str, StepSize]:
        """Return the largest step of each namespace that has one to report; thread-safe."""
        now = self._clock.monotonic()
        return {
            namespace: largest
            for namespace, (noted_at, largest) in tuple(self._largest.items())
            if now - noted_at < TOLD_SECONDS
        }
