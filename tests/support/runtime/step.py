"""Steps among collaborators in memory."""

import random
from collections.abc import Mapping
from typing import Any, cast

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask
from progressor.runtime.core.leases import Leases
from progressor.runtime.core.measures import StepMeasures
from progressor.runtime.core.observer import Observers
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.jobs.job_steps import Jobs, JobSteps
from progressor.runtime.step.histories import StepHistories
from progressor.runtime.step.history_cache import HistoryCache
from progressor.runtime.step.step import Steps
from progressor.storage.processes.settlements import Entry, Settlements, Written
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_process,
    make_task,
    seconds,
)
from tests.support.runtime.context import make_context
from tests.support.runtime.memory import (
    MemoryHistories,
    MemoryNamespaces,
    MemoryProcessor,
    MemorySettlements,
)

GRACE = seconds(2)


class RecordedSettlements:
    """Takes settlements where the engine has its dispatcher, and keeps them."""

    def __init__(self) -> None:
        self.entries: list[tuple[Entry, Written]] = []

    def settled(self, entry: Entry, written: Written) -> None:
        self.entries.append((entry, written))


class RefusedJobs:
    """Jobs of which PostgreSQL can read nothing."""

    async def known_nodes(self, _key: ProcessKey, *, after: int) -> Mapping[str, int]:
        del after
        message = "its page is broken"
        raise errors.StorageRefusedError(message)


class Harness:
    """Steps among collaborators in memory, and workers to carry them."""

    def __init__(self, namespace: Namespace | None = None, *, snapshot_bytes: int = 10_000) -> None:
        self.processor = MemoryProcessor()
        self.settlements = MemorySettlements()
        self.histories = MemoryHistories()
        self.namespaces = MemoryNamespaces(*([] if namespace is None else [namespace]))
        self.history_cache = HistoryCache(bytes_max=snapshot_bytes)
        self.effects = RecordedSettlements()
        self.leases = Leases()
        self.observers = Observers()
        self.metrics = Metrics()
        self.steps = Steps(
            processor=self.processor,
            settlements=cast("Settlements", self.settlements),
            histories=StepHistories(self.histories, self.history_cache),
            namespaces=self.namespaces,
            effects=cast("EffectDispatcher", self.effects),
            job_steps=JobSteps(cast("Jobs", RefusedJobs())),
            leases=self.leases,
            context=make_context(
                spread=random.Random(1), step_grace=GRACE, observers=self.observers
            ),
            measures=StepMeasures(self.metrics),
        )
        self.slots = Slots(lambda task: self.steps.carry(task, self.slots))

    async def carry(self, task: RunningTask | None = None) -> None:
        await self.steps.carry(make_task() if task is None else task, self.slots)

    @property
    def points(self) -> dict[str, int]:
        return dict(self.observers.counts)

    def history_sent(self) -> tuple[int, ...]:
        """Return the ids of the events that went with the last task."""
        return tuple(event.event_id for event in self.processor.asked[-1][1])


def task_with_history(last: int, **fields: Any) -> RunningTask:
    return make_task(process=make_process(last_event_id=last), **fields)
