"""Which processors are unreachable, and which steps come near a limit; heartbeats report both.

A processor is unreachable from the first step that fails to reach it until it takes a step or its
channel is connected again. A processor that responds, or hangs, is reachable. One that refuses
steps (UNAVAILABLE, RESOURCE_EXHAUSTED, another namespace's, another engine's) counts as unreachable
until it takes one, although its channel is connected.

A history that is sent whole grows until its processor no longer accepts it. Sizes from half of that
limit on are also reported by a metric; ``progressor doctor`` reads them from the heartbeats.
"""

import asyncio
import datetime as dt
from collections.abc import Mapping

from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.replica import StepSize
from progressor.processor.breaker import Breaker, pause_after
from progressor.processor.channels import Channels

SHARE_TOLD = 0.5
"""The share of its limit from which on a step is reported."""

TOLD_SECONDS = 600.0
"""For how long a step is reported, unless a larger one follows."""


REFUSALS_MAX = 3
"""Tasks refused in a row, with no step taken in between, at which a namespace's breaker opens."""

REFUSED_TASKS_MAX = 10_000
"""Tasks whose refusals are remembered, the latest ones."""


class Reach:
    """Which processors are unreachable, by the results of steps, and what may start meanwhile.

    A target of a bound node has a name of its own here (``namespace@target``) and no breaker, since
    only the step itself knows its target: each of these steps waits by a backoff of its own.
    """

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channels = channels
        self._clock = clock
        self.breakers: dict[str, Breaker] = {}
        """Those of namespaces that may not start as many steps as they like; usually empty."""
        self.room_made = asyncio.Event()
        """Set when one of them may start more steps."""
        channels.on_connected = self.connected
        # Bounded by the namespaces that have been asked for.
        self._missed_at: dict[str, float] = {}
        self._resumed_at: dict[str, float] = {}
        # Of them, those whose targets are connected, but refuse the steps; and which.
        self._refused: dict[str, set[int]] = {}
        self._refusals: dict[int, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def took(self, name: str, task_id: int) -> None:
        """Record that a processor took a step, whatever came of it."""
        if self._refusals:
            self._refusals.pop(task_id, None)
        self._reached(name)

    def busy(
        self, name: str, task_id: int, retry_after: dt.timedelta | None = None
    ) -> dt.timedelta:
        """Record that a step is behind an earlier one of its process; return how long it waits.

        The processor is in reach, and takes the steps of other processes.
        """
        self._reached(name)
        pause = self._backoff(task_id)
        return pause if retry_after is None else max(pause, retry_after)

    def _reached(self, name: str) -> None:
        if self._missed_at:
            self._missed_at.pop(name, None)
            self._refused.pop(name, None)
            self._recover(name)

    def lost(self, name: str) -> None:
        """Record a step that failed without an answer."""
        if self._channels.is_connected(name) is False:
            self._missed_at.setdefault(name, self._clock.monotonic())

    def missed(
        self, name: str, task_id: int, *, is_bound: bool, patience: dt.timedelta | None = None
    ) -> dt.timedelta:
        """Record that a step was not sent, since no target is connected; return how long it waits.

        Without a wait it is due at once, and the breaker holds it back.
        """
        self._missed_at.setdefault(name, self._clock.monotonic())
        self._refused.pop(name, None)
        if is_bound or self._channels.is_connected(name) is not False:
            return self._backoff(task_id)
        self._open(name, patience).cut(self._waits_since(name))
        self._wake_later(name)
        return dt.timedelta()

    def refused(
        self,
        name: str,
        task_id: int,
        retry_after: dt.timedelta | None,
        *,
        is_bound: bool,
        patience: dt.timedelta | None = None,
    ) -> dt.timedelta:
        """Record that a connected target refused a step; return how long it waits.

        A step that is refused while others are taken waits alone.
        """
        self._missed_at.setdefault(name, self._clock.monotonic())
        refused = self._refused.setdefault(name, set())
        pause = self._backoff(task_id)
        if len(refused) < REFUSALS_MAX:
            refused.add(task_id)
        if is_bound or len(refused) < REFUSALS_MAX:
            return pause if retry_after is None else max(pause, retry_after)
        self._open(name, patience).refuse(self._waits_since(name), retry_after)
        self._wake_later(name)
        return dt.timedelta() if retry_after is None else retry_after

    def connected(self, name: str) -> None:
        """Record that a target of a namespace is connected again."""
        if name in self._missed_at and name not in self._refused:
            del self._missed_at[name]
            self._recover(name)

    def look(self) -> None:
        """Forget namespaces whose processor is connected again or whose targets are gone."""
        for name in {*self._missed_at, *self.breakers}:
            is_connected = self._channels.is_connected(name)
            if is_connected is True:
                self.connected(name)
            elif is_connected is None:
                self._missed_at.pop(name, None)
                self._refused.pop(name, None)
                self._close(name)

    def unreachable(self) -> Mapping[str, dt.timedelta]:
        """Return which namespaces have no processor in reach, and for how long; thread-safe."""
        now = self._clock.monotonic()
        return {
            name: dt.timedelta(seconds=max(0.0, now - missed_at))
            for name, missed_at in tuple(self._missed_at.items())
        }

    def resumed(self, namespace: str) -> None:
        """Record that a pause has ended: patience counts anew, and what became due starts slowly.

        Otherwise its steps, as many as the namespace has workers, would hold up those of others.
        """
        self._resumed_at[namespace] = self._clock.monotonic()
        breaker = self.breakers.get(namespace)
        if breaker is not None and breaker.is_open:
            breaker.unreachable_since = self._resumed_at[namespace]
            self._wake_later(namespace)
        else:
            # A ramp that began before the pause may be over.
            self._close(namespace)
            self._open(namespace, None).recover()
            self._wake(namespace)

    def waiting_for(self, name: str) -> dt.timedelta:
        """Return for how long steps have waited for a processor, as patience counts it."""
        return dt.timedelta(seconds=max(0.0, self._clock.monotonic() - self._waits_since(name)))

    def _waits_since(self, name: str) -> float:
        missed_at = self._missed_at.get(name, self._clock.monotonic())
        return max(missed_at, self._resumed_at.get(name.partition("@")[0], missed_at))

    def _backoff(self, task_id: int) -> dt.timedelta:
        count = self._refusals.pop(task_id, 0) + 1
        self._refusals[task_id] = count
        if len(self._refusals) > REFUSED_TASKS_MAX:
            del self._refusals[next(iter(self._refusals))]
        return dt.timedelta(seconds=pause_after(count))

    def _open(self, name: str, patience: dt.timedelta | None) -> Breaker:
        breaker = self.breakers.get(name)
        if breaker is None:
            breaker = self.breakers[name] = Breaker(self._clock)
        breaker.patience = patience
        return breaker

    def _recover(self, name: str) -> None:
        breaker = self.breakers.get(name)
        if breaker is not None and breaker.is_open:
            breaker.recover()
            self._wake(name)

    def _close(self, name: str) -> None:
        self.breakers.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _wake(self, name: str) -> None:
        breaker = self.breakers.get(name)
        self.room_made.set()
        if breaker is None or breaker.is_over:
            self._close(name)
        else:
            self._wake_later(name)

    def _wake_later(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        seconds = self.breakers[name].wake_seconds()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(seconds, self._wake, name)


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
