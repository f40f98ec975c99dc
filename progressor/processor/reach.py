"""Reach: for how long the processors of which namespaces have not been reached.

From the first step that did not come through, until one does or a connection stands again. A
processor that answers is reached; so is one that hangs. A target that answers that it does not
serve the namespace, or not this engine, counts as not reached: its connection stands all the while,
so that only another answer ends it.
"""

import datetime as dt
from collections.abc import Mapping

from progressor.clock import Clock
from progressor.processor.channels import Channels


class Reach:
    """What is known of the ways to the processors, by what became of steps."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channels = channels
        self._clock = clock
        # Bounded by the namespaces that have been asked for.
        self._missed_at: dict[str, float] = {}
        # Those of them whose targets are there, but are the wrong ones.
        self._misconfigured: set[str] = set()

    def note(self, namespace: str, *, answered: bool, misconfigured: bool = False) -> None:
        """Take note of how a step of a namespace has ended: answered by its processor, or not."""
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
