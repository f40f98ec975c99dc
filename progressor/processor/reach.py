"""Reach: for how long the processors of which namespaces have not been reached.

From the first step that did not come through, until one does or a connection stands again. A
processor that answers, whatever it answers, is reached; so is one that hangs.
"""

import datetime as dt
from collections.abc import Mapping

from progressor.clock import Clock
from progressor.processor.channels import Channels


class Reach:
    """What is known of the ways to the processors, by what became of steps."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        """Begin with all of them reached."""
        self._channels = channels
        self._clock = clock
        # Bounded by the namespaces that have been asked for.
        self._missed_at: dict[str, float] = {}

    def note(self, namespace: str, *, answered: bool) -> None:
        """Take note of how a step of a namespace has ended: answered by its processor, or not."""
        if not answered and self._channels.is_connected(namespace) is False:
            self._missed_at.setdefault(namespace, self._clock.monotonic())
        elif self._missed_at:
            self._missed_at.pop(namespace, None)

    def look(self) -> None:
        """Drop those whose processor is connected again, or is nobody's any more."""
        for namespace in tuple(self._missed_at):
            if self._channels.is_connected(namespace) is not False:
                del self._missed_at[namespace]

    def unreachable(self) -> Mapping[str, dt.timedelta]:
        """Return which namespaces have no processor in reach, and for how long; thread-safe."""
        now = self._clock.monotonic()
        return {
            namespace: dt.timedelta(seconds=max(0.0, now - missed_at))
            for namespace, missed_at in tuple(self._missed_at.items())
        }
