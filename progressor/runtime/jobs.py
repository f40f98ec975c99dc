"""Ends and retries jobs, and does for them what no settlement does.

A job that needs upkeep gets it at once from the replica that learns of it (`JobScan.run`). The scan
finds what a dead replica left, the jobs whose deadline has passed, and followers whose leader was
removed; each minute, in one replica, also stalled jobs, which a healthy engine has none of. Each
call of storage is one transaction; its effects are applied before the next one.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Iterator

from progressor import errors, job_errors
from progressor.domain.jobs.job import Job, JobState
from progressor.domain.processes.process import ProcessKey
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.jobs.jobs import (
    BEFORE_ALL,
    RECOVERY_AGE,
    RECOVERY_INTERVAL,
    Found,
    Jobs,
    Maintained,
    RunningJobs,
)
from progressor.storage.postgres.rows.effects import Effects
from progressor.telemetry.instruments import Labels

_log = logging.getLogger(__name__)

OVERDUE = dt.timedelta(seconds=1)
"""How long a job waits for upkeep before the scan does it."""

_BACKOFF_SECONDS = 0.01, 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobControl:
    """The writes to jobs; all raise as the methods of storage's `Jobs` that they call."""

    jobs: Jobs
    effects: EffectDispatcher

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        self.effects.apply(await self.jobs.cancel(key, reason))
        job = await self.jobs.counts(key)
        # A job that is a node of another has failed, and may have been retried by now.
        state = JobState.CANCELLED if job.state is JobState.CANCELLED else JobState.FAILED
        self.effects.apply(Effects(ended=((key, state),)))
        return job

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Job, tuple[str, ...]]:
        """Continue a failed job, and those below it; return the names of nodes that begin again."""
        retried, effects = await self.jobs.retry(key, deadline=deadline, timeout=timeout)
        self.effects.apply(effects)
        leaders = list(retried.leaders)
        while leaders:
            # Another transaction may have been faster.
            with contextlib.suppress(job_errors.JobNotFoundError, job_errors.JobNotFailedError):
                below, effects = await self.jobs.retry(leaders.pop(), deadline=None, timeout=None)
                self.effects.apply(effects)
                leaders += below.leaders
        return await self.jobs.counts(key), retried.nodes

    async def maintain(self, key: ProcessKey) -> Maintained:
        """Do all the upkeep that a job needs at the moment, and return how much that was."""
        started = stopped = 0
        after: int | None = 0
        is_whole = False
        while after is not None:
            maintained, effects = await self.jobs.maintain(key, after=after)
            self.effects.apply(effects)
            started, stopped = started + maintained.started, stopped + maintained.stopped
            after, is_whole = maintained.next_after, maintained.is_whole
        return Maintained(started=started, stopped=stopped, is_whole=is_whole)

    async def stop_orphans(self) -> int:
        """Stop all followers whose leader was removed; return how many."""
        count = 0
        after: ProcessKey | None = BEFORE_ALL
        while after is not None:
            (stopped, after), effects = await self.jobs.stop_orphans(after=after)
            self.effects.apply(effects)
            count += stopped
        return count

    async def fail_overdue(self, *, limit: int) -> tuple[ProcessKey, ...]:
        """Fail at most `limit` jobs whose deadline has passed; return their leaders."""
        failed, effects = await self.jobs.fail_overdue(limit=limit)
        self.effects.apply(effects)
        return failed

    async def recover(
        self, *, interval: dt.timedelta = RECOVERY_INTERVAL, age: dt.timedelta = RECOVERY_AGE
    ) -> tuple[Found, ...] | None:
        """Do a round of recovery if one is due, at most one in all replicas each `interval`.

        Returns what was found, nothing in a healthy engine; None: no round is due here.
        """
        taken_at = await self.jobs.begin_recovery(interval=interval)
        if taken_at is None:
            return None
        found: list[Found] = []
        after: ProcessKey | None = BEFORE_ALL
        while after is not None:
            recovered, effects = await self.jobs.recover(
                taken_at, after=after, interval=interval, age=age
            )
            self.effects.apply(effects)
            found += recovered.found
            after = recovered.next_after
        return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobScan:
    control: JobControl
    context: Context
    _counted: dict[str, RunningJobs] = dataclasses.field(default_factory=dict)

    async def run(self) -> None:
        queue = self.control.effects.upkeep_queue
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            await queue.changed.wait()
            failed = []
            for key in queue.take():
                try:
                    if not await self._maintain(key):
                        failed.append(key)
                except errors.StorageError as error:
                    # The lock may be held, or PostgreSQL unavailable, for a long time.
                    _log.info("job upkeep failed; retrying", extra={"why": str(error)})
                    failed.append(key)
            if not failed:
                backoff.reset()
                continue
            await asyncio.sleep(backoff.pause())
            queue.add(*failed)

    async def scan(self) -> None:
        """Do what is overdue; and recover, if it is this replica's turn."""
        limit, context = self.context.scanner.batch_max, self.context
        for key in await self.control.fail_overdue(limit=limit):
            context.metrics.jobs_overdue.add(1, (key.namespace,))
            context.metrics.jobs_ended.add(1, (key.namespace, JobState.FAILED))
            context.observers.tell("job_overdue", job=key)
            facts = {"namespace": key.namespace, "process_id": key.process_id}
            _log.info("job overdue", extra=facts)
        due = await self.control.jobs.find_upkeep_due(age=OVERDUE, limit=limit)
        self.control.effects.apply(Effects(upkeep=due))
        await self.control.stop_orphans()
        for found in await self.control.recover() or ():
            context.metrics.jobs_recovered.add(1, (found.key.namespace, found.kind))
            context.observers.tell("job_recovered", job=found.key, kind=found.kind)
            facts = {"namespace": found.key.namespace, "process_id": found.key.process_id}
            _log.warning("job recovered", extra=facts | {"kind": found.kind, "node": found.node})

    async def count(self) -> None:
        counts = {each.namespace: each for each in await self.control.jobs.count_running()}
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
            for state in ("waiting", "ready", "running", "failed", "skipped"):
                yield (name, state), getattr(each, state)

    async def _maintain(self, key: ProcessKey) -> bool:
        """Do the upkeep of a job; return whether nothing is left to do."""
        maintained = await self.control.maintain(key)
        for action, count in (("started", maintained.started), ("stopped", maintained.stopped)):
            if count:
                self.context.metrics.upkeep_nodes.add(count, (key.namespace, action))
        self.context.observers.tell("job_tended", job=key)
        return maintained.is_whole
