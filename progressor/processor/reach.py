"""Reach: how long the processor of each namespace has been unreachable.

A processor is unreachable from the first step that fails to reach it until a step succeeds or its
channel is connected again. A processor that responds, or hangs, is reachable. A target that does
not serve the namespace, or not this engine, counts as unreachable until it responds otherwise,
although its channel is connected.
"""

import datetime as dt
from collections.abc import Mapping

from progressor.clock import Clock
from progressor.processor.channels import Channels


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
