"""Measures: what is counted of claims and of lost leases."""

import dataclasses
from collections.abc import Iterable, Sequence

from progressor.domain.processes.policy import ZombiePolicy
from progressor.domain.processes.settlement import Settlement
from progressor.domain.processes.task import TIMER_TYPES, TaskType
from progressor.runtime.core.measures import MILLISECONDS, SETTLEMENT_NAMES, count_ends
from progressor.storage.processes.claims import Claimed
from progressor.storage.replicas.replicas import Zombie
from progressor.telemetry.metrics.registry import Metrics


@dataclasses.dataclass(frozen=True, slots=True)
class ScanMeasures:
    """Counts what scanners bring."""

    metrics: Metrics

    def claimed(self, claimed: Sequence[Claimed], seconds: float) -> None:
        """Count a claim that took so long, once for each namespace and type in it."""
        for labels in {(each.task.key.namespace, each.task.task_type) for each in claimed}:
            timers = labels[1] in TIMER_TYPES
            metrics = self.metrics
            histogram = metrics.timers_scanning if timers else metrics.calls_scanning
            histogram.record(seconds * MILLISECONDS, labels)

    def found_nothing(self, namespaces: Iterable[str], seconds: float) -> None:
        """Count a look for whatever is due in namespaces where nothing is."""
        milliseconds = seconds * MILLISECONDS
        for name in namespaces:
            self.metrics.calls_scanning.record(milliseconds, (name, TaskType.CALL))
            self.metrics.timers_scanning.record(milliseconds, (name, TaskType.TIMEOUT))

    def missed(self, claimed: Claimed) -> None:
        """Count a task that should have been claimed before."""
        labels = (claimed.task.key.namespace, claimed.task.task_type)
        self.metrics.scan_found.add(1, labels)

    def collected(
        self, zombie: Zombie, settlement: Settlement, seconds: float, *, policy: ZombiePolicy
    ) -> None:
        """Count a lost lease that was settled, so long after it was found."""
        namespace, task_type = zombie.key.namespace, zombie.task_type
        name = SETTLEMENT_NAMES[type(settlement)]
        metrics = self.metrics
        metrics.zombie_collection.record(seconds * MILLISECONDS, (namespace, task_type))
        metrics.zombies_collected.add(1, (namespace, zombie.cause, policy, name))
        metrics.settled.add(1, (namespace, task_type, name))
        if zombie.part is not None:
            count_ends(metrics, zombie.key, zombie.part, task_type, settlement)
