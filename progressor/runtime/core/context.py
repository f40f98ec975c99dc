"""What every part of the runtime takes from the replica around it."""

import asyncio
import collections
import dataclasses
import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable

from progressor import errors
from progressor.clock import Clock, SystemClock
from progressor.domain.processes.namespace import Namespace
from progressor.runtime.core.measures import Measures
from progressor.settings.sections import ReplicaSettings, Scanner
from progressor.storage.postgres.backoff import Backoff
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.traces.tracing import SILENT, Tracing

_log = logging.getLogger(__name__)

JITTER = 0.1
"""The share of its interval by which a scan may come earlier or later."""


Observer = Callable[[str, dict[str, object]], None]
"""Called with the name of a point and its facts; must be quick and must not raise."""


class Observers:
    """The observers of one replica, and how often each point was passed."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def tell(self, point: str, **facts: object) -> None:
        self.counts[point] += 1
        for observer in self._observers:
            observer(point, facts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The clock, randomness, settings, telemetry and observers of one replica."""

    clock: Clock = dataclasses.field(default_factory=SystemClock)
    spread: random.Random = dataclasses.field(default_factory=random.Random)
    observers: Observers = dataclasses.field(default_factory=Observers)
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    measures: Measures = dataclasses.field(init=False)
    tracing: Tracing = SILENT
    replica_id: int = 1
    epoch: int = 1
    replica: ReplicaSettings = dataclasses.field(default_factory=ReplicaSettings)
    scanner: Scanner = dataclasses.field(default_factory=Scanner)

    def __post_init__(self) -> None:
        object.__setattr__(self, "measures", Measures(self.metrics))

    def jitter(self) -> float:
        """Return a random number from -1 to 1."""
        return self.spread.uniform(-1, 1)

    def backoff(self, first: float, longest: float) -> Backoff:
        """Return pauses from `first` to `longest` seconds, spread by the jitter."""
        return Backoff(first=first, longest=longest, jitter=self.jitter)

    def lease_of(self, namespace: Namespace) -> dt.timedelta:
        return namespace.step_timeout + self.replica.step_grace

    async def repeat(
        self, scan: Callable[[], Awaitable[None]], *, name: str, interval: dt.timedelta
    ) -> None:
        """Scan about every `interval`; ends only by cancellation.

        A scan that fails is repeated after the next interval, when it sees the same rows again.
        The jitter keeps replicas that started together from scanning together.
        """
        while True:
            try:
                await scan()
            except errors.StorageUnavailableError as error:
                _log.warning("scan failed", extra={"scan": name, "why": error.why})
                self._note_failed_scan(name)
            except Exception:  # noqa: BLE001  one of the two places (STYLE, rule 8)
                # Better than to stop here: steps and other scans continue.
                _log.exception("scan failed", extra={"scan": name})
                self._note_failed_scan(name)
            self.observers.tell("scanned", scan=name)
            await asyncio.sleep(interval.total_seconds() * (1 + JITTER * self.jitter()))

    def _note_failed_scan(self, name: str) -> None:
        self.metrics.scans_failed.add(1, (name,))
        self.observers.tell("scan_failed", scan=name)
