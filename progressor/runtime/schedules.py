"""Runs schedules when they are due, in whichever replica comes first.

The loop of `ScheduleScan` knows when the next schedule is due and wakes for it; what other replicas
make or change, it sees within an interval. That each instant runs once is ensured by one
transaction (``run_schedules``). What ends before a run of the policy *cancel previous* is ended by
requests, as a client would do: each is safe to repeat, so that another replica can complete what
one that dies leaves undone.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from progressor import errors, job_errors
from progressor.domain.processes.process import SLOT_COUNT
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.cron import CronError
from progressor.domain.schedules.schedule import (
    Calendar,
    Missed,
    OverlapPolicy,
    ScheduleKey,
    ScheduleRun,
    ScheduleRunCause,
    Upcoming,
)
from progressor.runtime.core.context import Context
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.jobs import JobControl
from progressor.runtime.requests import Requests
from progressor.storage.schedules.runs import (
    FIRST,
    DeletedTo,
    Done,
    DueSchedule,
    Item,
    QueuedRun,
    StartedWork,
    StoredRuns,
    item_of,
    schedule_target,
)
from progressor.storage.schedules.schedules import Schedules
from progressor.telemetry.traces.spans import UNTRACED, Span

_log = logging.getLogger(__name__)
_MILLISECOND = dt.timedelta(milliseconds=1)
_NO_TRACE: Mapping[str, str] = MappingProxyType({})
_UNREPORTED = frozenset({"changed", "waits", "known"})
_FAILURES = frozenset({"refused", "missed"})
_CANCELLED = "SCHEDULE_CANCELLED"
_ENDS_BY_ITSELF = (
    errors.NamespaceNotFoundError,
    errors.ProcessNotFoundError,
    errors.ProcessFinishedError,
    errors.TaskNotFoundError,
    errors.TaskHasEndedError,
    job_errors.JobEndedError,
)
"""Raised for work that has ended meanwhile."""

ATTEMPTS_MAX = 5
"""How often a trigger is tried whose schedule changes, or whose instant is taken."""

_BACKOFF_SECONDS = 0.25, 2.0

BATCH_MAX = 100
"""Schedules that one claim takes, and one transaction runs."""

QUEUED_MAX = 500
"""Schedules whose queued runs one round looks at."""

SLOTS_PER_ROUND = 32
"""Slots whose old runs one round deletes: with a round each 30 s, all are seen in 16 minutes."""

WINDOW = 1000
"""Runs that one transaction looks at to delete the old ones: some ten milliseconds."""

WINDOWS_PER_ROUND = 200
"""Windows per round; the rest is left to the next round."""

KEPT = 100
"""Runs of a schedule that are kept at most."""

KEPT_FOR = dt.timedelta(days=30)

CONFLICTS_MAX = 3
"""How often a batch that PostgreSQL undid for the sake of another is run again at once."""

# A timer of the event loop may come a little early, by PostgreSQL's clock.
_MARGIN_SECONDS = 0.001


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRuns:
    runs: StoredRuns
    schedules: Schedules
    requests: Requests
    jobs: JobControl
    effects: EffectDispatcher
    context: Context

    async def run(self, items: Sequence[Item]) -> tuple[Done, ...]:
        """Run a batch of one kind; raises what `StoredRuns.run` raises."""
        for item in items:
            if item.policy is OverlapPolicy.CANCEL_PREVIOUS:
                await self._cancel_previous(item)
        spans = [self._span(item) for item in items]
        items = [
            dataclasses.replace(item, trace_context=span.context(item.trace_context))
            for item, span in zip(items, spans, strict=True)
        ]
        try:
            done, effects = await self.runs.run(items)
            self.effects.apply(effects)
        except (errors.StorageConflictError, errors.StorageLockedError):
            # Nothing was done, and nothing is reported: spans that never end are dropped.
            raise
        except errors.StorageError as error:
            for span in spans:
                span.fail(error.reason)
                span.end()
            raise
        self._report(done, spans)
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

        Raises:
            ScheduleNotFoundError: There is none.
            StorageUnavailableError: PostgreSQL is unreachable; the key shows whether it ran.
        """
        for _ in range(ATTEMPTS_MAX):
            schedule = await self.schedules.get(key)
            if idempotency_key is not None:
                known = await self.runs.by_key(key, idempotency_key)
                if known is not None:
                    return known
            now = await self.runs.now()
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
            found = await self.runs.at(key, now)
            if found is not None:
                return found
        raise errors.StorageConflictError("the schedule keeps changing")

    async def last(self, key: ScheduleKey, *, limit: int) -> tuple[ScheduleRun, ...]:
        return await self.runs.last(key, limit=limit)

    async def _cancel_previous(self, item: Item) -> None:
        key = item.schedule.key
        for work in await self.runs.running(key):
            with contextlib.suppress(*_ENDS_BY_ITSELF):
                await self._cancel(work)
                await self.runs.mark_cancelled(key, work.instant)

    async def _cancel(self, work: StartedWork) -> None:
        if work.task_type is not TaskType.INIT:
            await self.requests.cancel(work.process, work.task_id)
            return
        try:
            await self.jobs.cancel(work.process, _CANCELLED)
        except job_errors.JobNotFoundError:
            await self.requests.halt(work.process, _CANCELLED)

    def _span(self, item: Item) -> Span:
        if not self.context.tracing.is_on:
            return UNTRACED
        instant = item.upcoming.instant
        return self.context.tracing.schedule_run(
            item.schedule.process_at(instant),
            item.schedule.key.schedule_id,
            instant,
            cause=item.cause,
            by_request=item.cause is ScheduleRunCause.TRIGGER and not item.was_queued,
        )

    def _report(self, done: Iterable[Done], spans: Iterable[Span]) -> None:
        for each, span in zip(done, spans, strict=True):
            item, verdict = each.item, each.verdict
            key = item.schedule.key
            self.context.observers.tell(
                "schedule_run",
                namespace=key.namespace,
                schedule_id=key.schedule_id,
                instant=item.upcoming.instant,
                verdict=verdict,
            )
            if verdict in _UNREPORTED:
                continue
            self.context.metrics.schedule_runs.add(1, (key.namespace, verdict))
            late = None if item.due is None else each.recorded_at - item.upcoming.due_at
            if late is not None and verdict == "started":
                milliseconds = late / _MILLISECOND
                self.context.metrics.schedule_lateness.record(milliseconds, (key.namespace,))
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleScan:
    schedule_runs: ScheduleRuns
    context: Context
    _cursor: list[QueuedRun] = dataclasses.field(default_factory=list)
    """The last one that the last round looked at, if there may be more behind it."""
    _slots: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.cycle(range(SLOT_COUNT))
    )
    _rest: list[tuple[int, DeletedTo]] = dataclasses.field(default_factory=list)
    """The slot in which the last round ended, and where in it."""

    async def run(self) -> None:
        """Run what is due, when it is due; ends only by cancellation."""
        backoff = self.context.backoff(*_BACKOFF_SECONDS)
        while True:
            self.schedule_runs.schedules.changed.clear()
            try:
                if await self.run_due() < BATCH_MAX:
                    await self._next()
                backoff.reset()
            except (errors.StorageUnavailableError, errors.StorageRefusedError) as error:
                if isinstance(error, errors.StorageUnavailableError):
                    _log.warning("schedules not run", extra={"why": error.why})
                else:
                    _log.error("schedules not run", extra={"why": str(error)})
                self.context.metrics.scans_failed.add(1, ("schedules",))
                await asyncio.sleep(backoff.pause())

    async def run_due(self) -> int:
        """Run what is due, at most BATCH_MAX; return how many were."""
        due = await self.schedule_runs.runs.claim_due(
            limit=BATCH_MAX, lease=self.context.replica.lease_timeout
        )
        self.context.observers.tell("schedules_claimed", count=len(due))
        planned: list[Item] = []
        for each in due:
            item = self.planned(each)
            if item is not None:
                planned.append(item)
                if isinstance(item.what, Missed):
                    # Counting what was missed in a long downtime takes a while for each schedule.
                    await asyncio.sleep(0)
        for items in _by_kind(planned):
            await self._run_batch(items)
        return len(due)

    async def scan(self) -> None:
        after = self._cursor.pop().schedule.key if self._cursor else FIRST
        found = await self.schedule_runs.runs.find_queued(after=after, limit=QUEUED_MAX)
        if len(found) == QUEUED_MAX:
            self._cursor.append(found[-1])
        ready = (_queued_item(each) for each in found if each.is_ready)
        for items in _by_kind(ready):
            await self._run_batch(items)

    async def forget(self) -> None:
        """Delete the record of old runs, of some slots a round, a window in a transaction."""
        windows = WINDOWS_PER_ROUND
        for _ in range(SLOTS_PER_ROUND):
            at: DeletedTo | None
            slot, at = self._rest.pop() if self._rest else (next(self._slots), DeletedTo())
            while at is not None and windows:
                deleted = await self.schedule_runs.runs.delete_old(
                    slot, at, kept=KEPT, age=KEPT_FOR, limit=WINDOW
                )
                at = deleted.next
                windows -= 1
            if at is not None:
                self._rest.append((slot, at))
                return

    async def _next(self) -> None:
        seconds = await self.schedule_runs.runs.seconds_until_due()
        wait = self.context.scanner.interval.total_seconds()
        if seconds is not None:
            wait = min(wait, seconds + _MARGIN_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self.schedule_runs.schedules.changed.wait()

    def planned(self, due: DueSchedule) -> Item | None:
        """Return what to do with a due schedule; None: this replica does not know its time zone."""
        try:
            calendar = Calendar(due.schedule.key, due.timing)
        except CronError as error:
            # Another replica, which knows more zones, checked it when it was made.
            _log_not_run(due.schedule.key, error)
            return None
        return item_of(due, calendar.plan(due.upcoming, due.now))

    async def _run_batch(self, items: Sequence[Item]) -> None:
        """Run a batch; where it fails as a whole, each alone."""
        for _ in range(CONFLICTS_MAX):
            try:
                await self.schedule_runs.run(items)
            except errors.StorageLockedError:
                break
            except errors.StorageConflictError:
                continue
            except errors.StorageRefusedError as error:
                if len(items) == 1:
                    # Its claim expires, and it is tried again: no other way of running it is known.
                    _log_not_run(items[0].schedule.key, error)
                    self.context.metrics.scans_failed.add(1, ("schedules",))
                break
            return
        if len(items) > 1:
            for item in items:
                await self._run_batch([item])


def _log_not_run(key: ScheduleKey, error: Exception) -> None:
    facts = {"namespace": key.namespace, "schedule_id": key.schedule_id, "why": str(error)}
    _log.error("schedule not run", extra=facts)


def _by_kind(items: Iterable[Item]) -> list[list[Item]]:
    kinds: dict[str, list[Item]] = {}
    for item in items:
        kinds.setdefault(item.schedule.kind, []).append(item)
    return list(kinds.values())


def _queued_item(queued: QueuedRun) -> Item:
    return Item(
        schedule=queued.schedule,
        what=queued.upcoming,
        cause=queued.cause,
        policy=queued.overlap_policy,
        was_queued=True,
    )


def _failure(done: Done) -> str | None:
    """Return why a run started nothing although it should have; None: it did what it should."""
    return done.reason or done.verdict.upper() if done.verdict in _FAILURES else None
