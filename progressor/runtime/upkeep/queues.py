"""Queues: looks now and then how many tasks wait for what, and remembers it for the metrics."""

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Protocol

from progressor.domain.processes.namespace import Namespace
from progressor.domain.views.activity import QUEUES_MAX, Queue
from progressor.telemetry.instruments import Labels
from progressor.telemetry.metrics.registry import Metrics

INTERVAL = dt.timedelta(seconds=10)
"""Between two looks: as often as metrics are read, about, and rare enough to cost nothing."""


class Queues(Protocol):
    """What a look needs of storage's queues."""

    async def count(self, namespaces: Sequence[str]) -> Sequence[Queue]:
        """Count what waits in namespaces."""


class Namespaces(Protocol):
    """What a look needs of storage's namespaces."""

    def known(self) -> tuple[Namespace, ...]:
        """Return the namespaces in memory."""

    async def refresh(self) -> None:
        """Read all namespaces into memory."""


class QueueScan:
    """One look over what waits."""

    def __init__(self, *, queues: Queues, namespaces: Namespaces, metrics: Metrics) -> None:
        self._queues = queues
        self._namespaces = namespaces
        self._last: Sequence[Queue] = ()
        self._gated: frozenset[str] = frozenset()
        metrics.queue_tasks.read_from(self._counts)
        metrics.queue_oldest_age.read_from(self._ages)
        metrics.gates_held.read_from(self._held)
        metrics.gates_full.read_from(self._full)

    async def scan(self) -> None:
        """Look, and remember what there was."""
        if not self._namespaces.known():
            await self._namespaces.refresh()
        names = [namespace.name for namespace in self._namespaces.known()]
        self._last = await self._queues.count(names[:QUEUES_MAX]) if names else ()
        # Who has had tasks with constraints is told of on: a series that ends at zero.
        self._gated = frozenset(
            queue.namespace
            for queue in self._last
            if queue.namespace in self._gated or queue.has_constraints
        )

    def _counts(self) -> Iterator[tuple[Labels, float]]:
        for queue in self._last:
            yield (queue.namespace, "timer"), queue.timers
            yield (queue.namespace, "retry"), queue.retries
            yield (queue.namespace, "no_free_worker"), queue.due
            yield (queue.namespace, "behind_task"), queue.behind
        for queue in self._with_constraints():
            yield (queue.namespace, "run_at"), queue.run_at
            yield (queue.namespace, "order"), queue.order
            yield (queue.namespace, "gate"), queue.gate
            yield (queue.namespace, "available"), queue.available

    def _ages(self) -> Iterator[tuple[Labels, float]]:
        for queue in self._last:
            yield (queue.namespace, "retry"), queue.retry_seconds
            yield (queue.namespace, "no_free_worker"), queue.due_seconds
            yield (queue.namespace, "behind_task"), queue.behind_seconds
        for queue in self._with_constraints():
            yield (queue.namespace, "order"), queue.order_seconds
            yield (queue.namespace, "gate"), queue.gate_seconds
            yield (queue.namespace, "available"), queue.available_seconds

    def _held(self) -> Iterator[tuple[Labels, float]]:
        for queue in self._with_constraints():
            yield (queue.namespace,), queue.held

    def _full(self) -> Iterator[tuple[Labels, float]]:
        for queue in self._with_constraints():
            yield (queue.namespace,), queue.full_gates

    def _with_constraints(self) -> Iterator[Queue]:
        return (queue for queue in self._last if queue.namespace in self._gated)
