"""What every part of the runtime takes from the process around it."""

import dataclasses
import datetime as dt
import random

from progressor.clock import Clock, SystemClock
from progressor.domain.processes.namespace import Namespace
from progressor.runtime.core.observer import Observers
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.traces.tracing import SILENT, Tracing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The clock, randomness, telemetry and observers of one replica."""

    clock: Clock = dataclasses.field(default_factory=SystemClock)
    spread: random.Random = dataclasses.field(default_factory=random.Random)
    observers: Observers = dataclasses.field(default_factory=Observers)
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    tracing: Tracing = SILENT
    replica_id: int = 1
    step_grace: dt.timedelta = dt.timedelta(seconds=2)
    """How much longer than its step a lease lasts."""

    def jitter(self) -> float:
        """Return a random number from -1 to 1."""
        return self.spread.uniform(-1, 1)

    def lease_of(self, namespace: Namespace) -> dt.timedelta:
        """Return how long a lease for one step in a namespace lasts."""
        return namespace.step_timeout + self.step_grace
