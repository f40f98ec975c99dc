"""Failures, added up, and the count of what waits, which metrics report."""

import dataclasses
import datetime as dt
from collections.abc import Iterator, Sequence

from progressor.domain.processes.process import ProcessStatus
from progressor.domain.views.activity import QUEUES_MAX, NamespaceQueue
from progressor.domain.views.why import are_timers_held, is_out_of_reach
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.replicas.queues import QueueWatch
from progressor.storage.replicas.status import Watch
from progressor.storage.steps.failures import Failures
from progressor.telemetry.instruments import Labels
from progressor.telemetry.metrics.registry import Metrics

QUEUES_INTERVAL = dt.timedelta(seconds=10)
"""About as often as metrics are read, and rare enough to cost nothing."""

BATCHES_MAX = 20
"""Batches of one kind in one round; the next rounds delete the rest."""


async def forget_namespaces(namespaces: Namespaces, effects: EffectDispatcher) -> None:
    """Release what is kept for deleted namespaces; ends only by cancellation."""
    while True:
        await namespaces.gone_noted.wait()
        effects.apply(namespaces.take_gone())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureScan:
    """Adds up failures, and groups processes that a release before the groups has broken."""

    failures: Failures
    namespaces: Namespaces

    async def scan(self) -> None:
        for _ in range(BATCHES_MAX):
            if not await self.failures.add():
                break
        for namespace in self.namespaces.known():
            await self.failures.group(namespace.name)


class QueueScan:
    def __init__(
        self,
        *,
        queues: QueueWatch,
        namespaces: Namespaces,
        metrics: Metrics,
        watch: Watch | None = None,
    ) -> None:
        self._queues = queues
        self._watch = watch
        self._unreachable: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()
        """Those whose due timers wait for their quota."""
        self._ever_held: frozenset[str] = frozenset()
        self._namespaces = namespaces
        self._last: Sequence[NamespaceQueue] = ()
        self._gated: frozenset[str] = frozenset()
        metrics.queue_tasks.read_from(self._counts)
        metrics.queue_oldest_age.read_from(self._ages)
        metrics.processes.read_from(
            lambda: [
                ((it.namespace, status.value), getattr(it, f"{status}_process_count"))
                for it in self._last
                for status in ProcessStatus
            ]
        )
        metrics.gates_held.read_from(
            lambda: [((it.namespace,), it.held_count) for it in self._with_constraints()]
        )
        metrics.gates_full.read_from(
            lambda: [((it.namespace,), it.full_gate_count) for it in self._with_constraints()]
        )

    async def scan(self) -> None:
        if not self._namespaces.known():
            await self._namespaces.refresh()
        names = [namespace.name for namespace in self._namespaces.known()]
        self._last = await self._queues.count(names[:QUEUES_MAX]) if names else ()
        if self._watch is not None:
            serving = (await self._watch.facts()).serving()
            self._held = frozenset(
                it.name for it in self._namespaces.known() if are_timers_held(serving, it)
            )
            self._ever_held |= self._held
            self._unreachable = frozenset(
                queue.namespace for queue in self._last if is_out_of_reach(serving, queue.namespace)
            )
        # A namespace that has had tasks with constraints keeps its series, so that it ends at zero.
        self._gated = frozenset(
            queue.namespace
            for queue in self._last
            if queue.namespace in self._gated or queue.has_constraints
        )

    def _counts(self) -> Iterator[tuple[Labels, float]]:
        for queue in self._last:
            yield (queue.namespace, "timer"), queue.timer_count
            yield (queue.namespace, "retry"), queue.retry_count
            for cause, is_it in self._causes_of_due(queue):
                yield (queue.namespace, cause), queue.due_count if is_it else 0
            paused = 0 if queue.paused_age is None else queue.due_count + queue.available_count
            yield (queue.namespace, "paused"), paused
            yield (queue.namespace, "behind_task"), queue.behind_count
            yield (queue.namespace, "process_failed"), queue.process_failed_count
        for queue in self._with_constraints():
            for cause in ("run_at", "order", "gate"):
                yield (queue.namespace, cause), getattr(queue, f"{cause}_count")
            is_paused = queue.paused_age is not None
            yield (queue.namespace, "available"), 0 if is_paused else queue.available_count

    def _ages(self) -> Iterator[tuple[Labels, float]]:
        for queue in self._last:
            yield (queue.namespace, "retry"), _seconds(queue.retry_age)
            for cause, is_it in self._causes_of_due(queue):
                yield (queue.namespace, cause), _seconds(queue.due_age) if is_it else 0.0
            is_paused = queue.paused_age is not None
            yield (queue.namespace, "paused"), _seconds(queue.worker_age) if is_paused else 0.0
            yield (queue.namespace, "behind_task"), _seconds(queue.behind_age)
            yield (queue.namespace, "process_failed"), _seconds(queue.process_failed_age)
        for queue in self._with_constraints():
            for cause in ("order", "gate"):
                yield (queue.namespace, cause), _seconds(getattr(queue, f"{cause}_age"))
            is_paused = queue.paused_age is not None
            yield (
                (queue.namespace, "available"),
                0.0 if is_paused else _seconds(queue.available_age),
            )

    def _causes_of_due(self, queue: NamespaceQueue) -> Iterator[tuple[str, bool]]:
        """Return the causes of a task that is due, but for a pause, and which of them it is."""
        is_out_of_reach, runs = queue.namespace in self._unreachable, queue.paused_age is None
        is_held = queue.namespace in self._held and not is_out_of_reach
        yield "no_free_worker", runs and not is_out_of_reach and not is_held
        yield "processor_unreachable", runs and is_out_of_reach
        if queue.namespace in self._ever_held:
            yield "quota", runs and is_held

    def _with_constraints(self) -> Iterator[NamespaceQueue]:
        return (queue for queue in self._last if queue.namespace in self._gated)


def _seconds(age: dt.timedelta | None) -> float:
    return 0.0 if age is None else age.total_seconds()
