"""The upkeep of jobs: the work that settlements leave over.

The replica that causes such work does it at once (`JobScan.run`); the scan finds the work of
replicas that died, jobs whose deadline has passed, and followers whose leader was removed. Recovery
is a round that one replica at a time does each minute: it looks for stalled jobs, finds none in a
healthy engine, and counts what it finds.
"""

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import Iterator
from typing import Protocol

from progressor import errors
from progressor.domain.jobs.job import JobState
from progressor.domain.processes.process import ProcessKey
from progressor.runtime.core.context import Context
from progressor.runtime.effects.upkeep_queue import UpkeepQueue
from progressor.settings.sections import Scanner
from progressor.storage.jobs.jobs import Found, Maintained, RunningJobs
from progressor.storage.postgres.backoff import Backoff
from progressor.telemetry.instruments import Labels

_log = logging.getLogger(__name__)

OVERDUE = dt.timedelta(seconds=1)
"""How long a job waits to be maintained before the scan does it."""

_BACKOFF_SECONDS = 0.01
_BACKOFF_SECONDS_MAX = 1.0


class Jobs(Protocol):
    """What a scan reads of storage's jobs; raises `errors.StorageUnavailableError`."""

    async def find_upkeep_due(self, *, age: dt.timedelta, limit: int) -> tuple[ProcessKey, ...]:
        """Find jobs that have waited for upkeep."""

    async def count_running(self) -> tuple[RunningJobs, ...]:
        """Count jobs that run, and their nodes."""


class JobControl(Protocol):
    """What a scan does to jobs; raises `errors.StorageError`."""

    async def maintain(self, key: ProcessKey) -> Maintained:
        """Do for a job what no settlement does."""

    async def fail_overdue(self, *, limit: int) -> tuple[ProcessKey, ...]:
        """Fail jobs whose deadline has passed."""

    async def stop_orphans(self) -> int:
        """Stop followers whose leader was removed."""

    async def recover(self) -> tuple[Found, ...] | None:
        """Do a round of recovery, if one is due."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobScan:
    """What one replica does for jobs."""

    jobs: Jobs
    control: JobControl
    upkeep_queue: UpkeepQueue
    scanner: Scanner
    context: Context
    _counted: dict[str, RunningJobs] = dataclasses.field(default_factory=dict)

    async def run(self) -> None:
        """Tend what this replica hears of; ends only by cancellation."""
        backoff = Backoff(
            first=_BACKOFF_SECONDS, longest=_BACKOFF_SECONDS_MAX, jitter=self.context.jitter
        )
        while True:
            await self.upkeep_queue.changed.wait()
            failed = []
            for key in self.upkeep_queue.take():
                try:
                    if not await self._tend(key):
                        failed.append(key)
                except errors.StorageError as error:
                    # The lock may be held, or PostgreSQL unavailable, for a long time.
                    _log.info("job upkeep failed; retrying", extra={"why": str(error)})
                    failed.append(key)
            if not failed:
                backoff.reset()
                continue
            await asyncio.sleep(backoff.pause())
            self.upkeep_queue.add(*failed)

    async def scan(self) -> None:
        """Do what is overdue; and, if it is this replica's turn, recover."""
        limit = self.scanner.batch_max
        for key in await self.control.fail_overdue(limit=limit):
            self._count_overdue(key)
        self.upkeep_queue.add(*await self.jobs.find_upkeep_due(age=OVERDUE, limit=limit))
        await self.control.stop_orphans()
        for found in await self.control.recover() or ():
            self.context.metrics.jobs_recovered.add(1, (found.key.namespace, found.kind))
            self.context.observers.tell("job_recovered", job=found.key, kind=found.kind)
            _log.warning(
                "job recovered",
                extra={
                    "namespace": found.key.namespace,
                    "process_id": found.key.process_id,
                    "kind": found.kind,
                    "node": found.node,
                },
            )

    async def count(self) -> None:
        """Count jobs that run, and their nodes, over all replicas."""
        counts = {each.namespace: each for each in await self.jobs.count_running()}
        self._counted.clear()
        self._counted.update(counts)

    def observed(self) -> None:
        """Have metrics read what was counted last, from now on; from any thread."""
        self.context.metrics.jobs_running.read_from(
            lambda: [((name,), each.jobs) for name, each in dict(self._counted).items()]
        )
        self.context.metrics.job_nodes.read_from(self._nodes)

    def _nodes(self) -> Iterator[tuple[Labels, float]]:
        for name, each in dict(self._counted).items():
            yield (name, "waiting"), each.waiting
            yield (name, "ready"), each.ready
            yield (name, "running"), each.running
            yield (name, "failed"), each.failed
            yield (name, "skipped"), each.skipped

    async def _tend(self, key: ProcessKey) -> bool:
        """Tend a job; tell whether nothing is left."""
        maintained = await self.control.maintain(key)
        for action, count in (("started", maintained.started), ("stopped", maintained.stopped)):
            if count:
                self.context.metrics.upkeep_nodes.add(count, (key.namespace, action))
        self.context.observers.tell("job_tended", job=key)
        return maintained.is_whole

    def _count_overdue(self, key: ProcessKey) -> None:
        self.context.metrics.jobs_overdue.add(1, (key.namespace,))
        self.context.metrics.jobs_ended.add(1, (key.namespace, JobState.FAILED))
        self.context.observers.tell("job_overdue", job=key)
        _log.info("job overdue", extra={"namespace": key.namespace, "process_id": key.process_id})
