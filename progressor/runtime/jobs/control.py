"""Ends and retries jobs, and does for them what no settlement does.

Each call of storage is one transaction; its effects are applied before the next one.
"""

import contextlib
import dataclasses
import datetime as dt

from progressor import job_errors
from progressor.domain.jobs.job import Job, JobState
from progressor.domain.processes.process import ProcessKey
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.jobs.jobs import (
    BEFORE_ALL,
    RECOVERY_AGE,
    RECOVERY_INTERVAL,
    Found,
    Jobs,
    Maintained,
)
from progressor.storage.rows.effects import Effects


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobControl:
    """The writes to jobs; all raise as the methods of storage's `Jobs` that they call."""

    jobs: Jobs
    effects: EffectDispatcher

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        """End a job and return it."""
        self.effects.apply(await self.jobs.cancel(key, reason))
        job = await self.jobs.counts(key)
        # A job that is a node of another has failed, and may have been retried by now.
        state = JobState.CANCELLED if job.state is JobState.CANCELLED else JobState.FAILED
        self.effects.apply(Effects(ended=((key, state),)))
        return job

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Job, tuple[str, ...]]:
        """Go on with a failed job, and with the failed jobs below it.

        Returns:
            The job, and the names of its nodes that begin again, by their ordinals.
        """
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
        """Do all that is to be done for a job at the moment, and return how much that was."""
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

        Returns:
            What was found, nothing in a healthy engine; None: no round is due, or another replica
            does it.
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
