"""ScheduleRuns: runs with what goes before them, and what is told of them.

What ends before a run of the policy *cancel previous* is ended by requests of their own, as a
client would: each is safe to repeat, so that a replica that dies in between leaves nothing undone
that the next one would not do.
"""

import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from progressor import errors, job_errors
from progressor.domain.jobs.job import Job
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleRunCause,
    Upcoming,
)
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.schedules.runs import Done, Item, StartedWork, StoredRuns, schedule_target
from progressor.telemetry.traces.spans import UNTRACED, Span

_log = logging.getLogger(__name__)
_MILLISECOND = dt.timedelta(milliseconds=1)
_NO_TRACE: Mapping[str, str] = MappingProxyType({})
_UNTOLD = frozenset({"changed", "waits", "known"})
_FAILURES = frozenset({"refused", "missed"})
_CANCELLED = "SCHEDULE_CANCELLED"
_ENDS_BY_ITSELF = (
    errors.NamespaceNotFoundError,
    errors.ProcessNotFoundError,
    errors.ProcessFinishedError,
    errors.TaskNotFoundError,
    errors.TaskHasEndedError,
    errors.TaskIsRunningError,
    job_errors.JobEndedError,
)
"""What has ended meanwhile, or a call in its last step."""

ATTEMPTS_MAX = 5
"""How often a trigger is tried whose schedule changes, or whose instant is taken."""


class Requests(Protocol):
    """What is needed of the requests."""

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        """Cancel a task that waits, and return its id."""

    async def halt(self, key: ProcessKey, detail: str) -> None:
        """Put a process into error."""


class Jobs(Protocol):
    """What is needed of the jobs."""

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        """End a job."""


class Schedules(Protocol):
    """What is needed of the schedules."""

    async def get(self, key: ScheduleKey) -> Schedule:
        """Return a schedule."""


class ScheduleRuns:
    """Runs schedules."""

    def __init__(
        self,
        *,
        runs: StoredRuns,
        schedules: Schedules,
        requests: Requests,
        jobs: Jobs,
        effects: EffectDispatcher,
        context: Context,
    ) -> None:
        self._runs = runs
        self._schedules = schedules
        self._requests = requests
        self._jobs = jobs
        self._effects = effects
        self._context = context

    async def run(self, items: Sequence[Item]) -> tuple[Done, ...]:
        """Run a batch of one kind; raises as `StoredRuns.run`."""
        for item in items:
            if item.policy is OverlapPolicy.CANCEL_PREVIOUS:
                await self._cancel_previous(item)
        spans = [self._span(item) for item in items]
        items = [
            dataclasses.replace(item, trace_context=span.context(item.trace_context))
            for item, span in zip(items, spans, strict=True)
        ]
        try:
            done, effects = await self._runs.run(items)
            self._effects.apply(effects)
        except (errors.StorageConflictError, errors.StorageLockedError):
            # Nothing was done, and nothing is reported: spans that never end are dropped.
            raise
        except errors.StorageError as error:
            for span in spans:
                span.fail(error.reason)
                span.end()
            raise
        self._tell(done, spans)
        return done

    async def trigger(
        self,
        key: ScheduleKey,
        *,
        policy: OverlapPolicy | None,
        idempotency_key: str | None,
        trace_context: Mapping[str, str] = _NO_TRACE,
    ) -> ScheduleRun:
        """Run a schedule now; a key that came before finds its run.

        What is started goes on with the `trace_context`.

        Raises:
            ScheduleNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is unreachable; whether it ran is told by the key.
        """
        for _ in range(ATTEMPTS_MAX):
            schedule = await self._schedules.get(key)
            if idempotency_key is not None:
                known = await self._runs.by_key(key, idempotency_key)
                if known is not None:
                    return known
            now = await self._runs.now()
            item = Item(
                schedule=schedule_target(schedule),
                what=Upcoming(now, now),
                cause=ScheduleRunCause.TRIGGER,
                policy=policy or schedule.spec.timing.overlap_policy,
                idempotency_key=idempotency_key,
                trace_context=trace_context,
            )
            [done] = await self.run([item])
            if done.verdict in {"changed", "known"}:
                continue
            found = await self._runs.at(key, now)
            if found is not None:
                return found
        raise errors.StorageConflictError("the schedule keeps changing")

    async def last(self, key: ScheduleKey, *, limit: int) -> tuple[ScheduleRun, ...]:
        """Return at most `limit` runs, the latest first."""
        return await self._runs.last(key, limit=limit)

    async def _cancel_previous(self, item: Item) -> None:
        key = item.schedule.key
        for work in await self._runs.running(key):
            with contextlib.suppress(*_ENDS_BY_ITSELF):
                await self._cancel(work)
                await self._runs.mark_cancelled(key, work.instant)

    async def _cancel(self, work: StartedWork) -> None:
        if work.task_type is not TaskType.INIT:
            await self._requests.cancel(work.process, work.task_id)
            return
        try:
            await self._jobs.cancel(work.process, _CANCELLED)
        except job_errors.JobNotFoundError:
            await self._requests.halt(work.process, _CANCELLED)

    def _span(self, item: Item) -> Span:
        if not self._context.tracing.is_on:
            return UNTRACED
        instant = item.upcoming.instant
        return self._context.tracing.schedule_run(
            item.schedule.process_at(instant),
            item.schedule.key.schedule_id,
            instant,
            cause=item.cause,
            by_request=item.cause is ScheduleRunCause.TRIGGER and not item.was_queued,
        )

    def _tell(self, done: Iterable[Done], spans: Iterable[Span]) -> None:
        for each, span in zip(done, spans, strict=True):
            item, verdict = each.item, each.verdict
            key = item.schedule.key
            self._context.observers.tell(
                "schedule_run",
                namespace=key.namespace,
                schedule_id=key.schedule_id,
                instant=item.upcoming.instant,
                verdict=verdict,
            )
            if verdict in _UNTOLD:
                continue
            self._context.metrics.schedule_runs.add(1, (key.namespace, verdict))
            late = None if item.due is None else each.recorded_at - item.upcoming.due_at
            if late is not None and verdict == "started":
                milliseconds = late / _MILLISECOND
                self._context.metrics.schedule_lateness.record(milliseconds, (key.namespace,))
            span.ran(verdict, late=late, task_id=each.task_id, reason=_failure(each))
            span.end()
            if verdict in _FAILURES:
                facts = {
                    "namespace": key.namespace,
                    "schedule_id": key.schedule_id,
                    "instant": item.upcoming.instant.isoformat(),
                    "why": each.reason or verdict,
                }
                _log.warning("schedule run refused", extra=facts)


def _failure(done: Done) -> str | None:
    """Return why a run started nothing though it should have; None: it did as it should."""
    return done.reason or done.verdict.upper() if done.verdict in _FAILURES else None
