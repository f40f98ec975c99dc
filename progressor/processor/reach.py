"""What heartbeats report of processors: which are unreachable, and which steps come near a limit.

A processor is unreachable from the first step that fails to reach it until a step succeeds or its
channel is connected again. A processor that responds, or hangs, is reachable. A target that does
not serve the namespace, or not this engine, counts as unreachable until it responds otherwise,
although its channel is connected.

A history that is sent whole grows until its processor no longer accepts it. Sizes from half of that
limit on are also reported by a metric; ``progressor doctor`` reads them from the heartbeats.
"""

import datetime as dt
from collections.abc import Mapping

from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.replica import StepSize
from progressor.processor.channels import Channels

SHARE_TOLD = 0.5
"""The share of its limit from which on a step is reported."""

TOLD_SECONDS = 600.0
"""For how long a step is reported, unless a larger one follows."""


class Reach:
    """Which processors are unreachable, by the results of steps."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channels = channels
        self._clock = clock
        # Bounded by the namespaces that have been asked for.
        self._missed_at: dict[str, float] = {}
        # Those of them whose targets respond, but do not serve the namespace.
        self._misconfigured: set[str] = set()

    def note(self, namespace: str, *, answered: bool, misconfigured: bool = False) -> None:
        """Record whether the processor of a namespace responded to a step."""
        if misconfigured:
            self._misconfigured.add(namespace)
            self._missed_at.setdefault(namespace, self._clock.monotonic())
        elif not answered and self._channels.is_connected(namespace) is False:
            self._misconfigured.discard(namespace)
            self._missed_at.setdefault(namespace, self._clock.monotonic())
        elif self._missed_at:
            self._misconfigured.discard(namespace)
            self._missed_at.pop(namespace, None)

    def look(self) -> None:
        """Forget namespaces whose processor is connected again or whose targets are gone."""
        for namespace in tuple(self._missed_at):
            is_connected = self._channels.is_connected(namespace)
            is_back = is_connected is True and namespace not in self._misconfigured
            if is_connected is None or is_back:
                self._misconfigured.discard(namespace)
                del self._missed_at[namespace]

    def unreachable(self) -> Mapping[str, dt.timedelta]:
        """Return which namespaces have no processor in reach, and for how long; thread-safe."""
        now = self._clock.monotonic()
        return {
            namespace: dt.timedelta(seconds=max(0.0, now - missed_at))
            for namespace, missed_at in tuple(self._missed_at.items())
        }


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
