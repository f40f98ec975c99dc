"""Runs: what schedules start when they are due, each instant once.

``priv/functions/schedules/run_schedules.sql`` does it, in one transaction under the locks of the
schedules; a claim before it only divides the work among replicas.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    JobTarget,
    Missed,
    OverlapPolicy,
    Plan,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleRunCause,
    StartTarget,
    Timing,
    Upcoming,
    run_key,
    target_id,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.documents import JOB, START, json_text
from progressor.storage.postgres.rows.effects import NO_EFFECTS, Effects, gate_effects
from progressor.storage.postgres.rows.records import reader

_SQL = statements.load("schedules/schedules")

RUNNING_MAX = 1000
"""Runs of a schedule that are looked at."""

FIRST = ScheduleKey(-1, "", "")
"""Before all schedules, in the order of their keys."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTarget:
    """A schedule as far as its runs need it: which one, and what it starts.

    ``target`` and ``target_id`` are its columns; ``is_gated``: what it starts has constraints.
    """

    key: ScheduleKey
    revision: int
    target: str
    target_id: str
    is_gated: bool

    @property
    def kind(self) -> str:
        """What one statement starts together, so that it locks processes in their order."""
        match self.target:
            case "job":
                return "job"
            case "start":
                return "gated_start" if self.is_gated else "start"
            case _:
                return "gated_request" if self.is_gated else "request"

    def process_at(self, instant: dt.datetime) -> ProcessKey:
        """Return the process that it starts, or calls, for an instant."""
        if self.target in {"call", "notify"}:
            return process_key(self.key.namespace, self.target_id)
        process_id = target_id(self.target_id, self.key.schedule_id, instant)
        return process_key(self.key.namespace, process_id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """A schedule that is due, by PostgreSQL's ``now``, and claimed for a while."""

    schedule: ScheduleTarget
    timing: Timing
    upcoming: Upcoming
    now: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """The oldest queued run of a schedule; ``is_ready``: it may be started."""

    schedule: ScheduleTarget
    upcoming: Upcoming
    cause: ScheduleRunCause
    overlap_policy: OverlapPolicy
    is_ready: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A run to be done; at most one of a schedule in a batch.

    ``due`` is what its instant was claimed by, and ``then`` what comes next; both only for time.
    ``what`` is Missed only there. ``trace_context`` goes with what is started.
    """

    schedule: ScheduleTarget
    what: Upcoming | Missed
    cause: ScheduleRunCause
    policy: OverlapPolicy
    was_queued: bool = False
    due: Upcoming | None = None
    then: Upcoming | None = None
    idempotency_key: str | None = None
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def upcoming(self) -> Upcoming:
        return self.what.first if isinstance(self.what, Missed) else self.what


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of an item, as `run_schedules` says it; ``recorded_at`` by PostgreSQL's clock."""

    item: Item
    verdict: str
    recorded_at: dt.datetime
    task_id: int | None
    reason: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StartedWork:
    instant: dt.datetime
    process: ProcessKey
    task_type: TaskType
    task_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeletedTo:
    """Where in a slot the deletion of old runs is.

    ``instant``: within that schedule; None: behind it. ``kept_at`` and ``kept_instant`` are of the
    latest run of it that is not kept, if there is one.
    """

    namespace: str = ""
    schedule_id: str = ""
    instant: dt.datetime | None = None
    kept_at: dt.datetime | None = None
    kept_instant: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Deleted:
    """How many old runs were deleted, and where to go on; None: the slot is done."""

    count: int
    next: DeletedTo | None


class _DoneRow(NamedTuple):
    """What became of an item; or, without an item, effects on gates."""

    item: int | None
    verdict: str
    recorded_at: dt.datetime
    task_id: int
    is_due: bool
    reason: str | None
    effects: list[Any] | None


class _DeletedRow(NamedTuple):
    """How many runs were deleted; ``is_done``: the slot is, so the rest says nothing."""

    deleted_count: int
    is_done: bool
    at: DeletedTo


class StoredRuns:
    """Claims due schedules, and starts and reads their runs."""

    def __init__(self, context: StorageContext) -> None:
        functions = context.functions
        self._context = context
        self._claim_schedules = functions.call("claim_schedules", DueSchedule)
        self._run_schedules = functions.call("run_schedules", _DoneRow)
        self._find_queued_runs = functions.call("find_queued_runs", QueuedRun)
        self._read_schedule_runs = functions.call("read_schedule_runs", ScheduleRun)
        self._find_started_work = functions.call("find_started_work")
        self._started = reader(StartedWork, self._find_started_work.columns, "namespace")
        self._delete_old_runs = functions.call("delete_old_runs", _DeletedRow)

    async def claim_due(self, *, limit: int, lease: dt.timedelta) -> tuple[DueSchedule, ...]:
        """Claim at most `limit` schedules that are due, the longest overdue first.

        Others leave them alone for `lease`; but it decides nothing.
        """
        return tuple(
            await self._context.call(
                self._claim_schedules, lease=lease.total_seconds(), limit=limit
            )
        )

    async def seconds_until_due(self) -> float | None:
        """Return when the next unclaimed schedule is due, or None if there is none."""
        found = await self._context.read(float, _SQL["find_next_due"])
        return max(0.0, found[0]) if found else None

    async def find_queued(self, *, after: ScheduleKey, limit: int) -> tuple[QueuedRun, ...]:
        """Look at the oldest queued run of at most `limit` schedules behind `after`."""
        found = await self._context.call(
            self._find_queued_runs,
            limit=limit,
            after_slot=after.slot,
            after_namespace=after.namespace,
            after_schedule_id=after.schedule_id,
        )
        return tuple(found)

    async def run(self, items: Sequence[Item]) -> tuple[tuple[Done, ...], Effects]:
        """Run what is due, all of one kind, and return what became of each, in their order.

        Raises:
            StorageConflictError: Nothing was done; it may be repeated at once.
            StorageLockedError: Another transaction keeps one of them locked; nothing was changed.
            StorageUnavailableError: Whether it was done is unknown; to repeat it does no harm.
        """
        kinds = {item.schedule.kind for item in items}
        assert len(kinds) == 1, f"{kinds}: one kind in a batch"
        found = await self._context.call(
            self._run_schedules,
            kind=kinds.pop(),
            **_columns_of(items),
        )
        results: list[Done | None] = [None] * len(items)
        due: list[tuple[ProcessKey, int]] = []
        effects = NO_EFFECTS
        for row in found:
            if row.item is None:
                effects |= gate_effects(row.effects)
                continue
            item = items[row.item - 1]
            results[row.item - 1] = Done(
                item=item,
                verdict=row.verdict,
                recorded_at=row.recorded_at,
                task_id=row.task_id,
                reason=row.reason,
            )
            if row.is_due:
                due.append((item.schedule.process_at(item.upcoming.instant), row.task_id))
        done = tuple(result for result in results if result is not None)
        assert len(done) == len(items), "a batch came back with items missing"
        return done, effects | Effects(due=tuple(due))

    async def by_key(self, key: ScheduleKey, idempotency_key: str) -> ScheduleRun | None:
        """Return the run of the trigger that came with a key before."""
        found = await self._context.read(
            dt.datetime, _SQL["find_run_by_key"], key, idempotency_key=idempotency_key
        )
        return await self.at(key, found[0]) if found else None

    async def at(self, key: ScheduleKey, instant: dt.datetime) -> ScheduleRun | None:
        found = await self._read(key, instant=instant, limit=1)
        return found[0] if found and found[0].instant == instant else None

    async def running(self, key: ScheduleKey) -> tuple[StartedWork, ...]:
        found = await self._context.call(self._find_started_work, key, limit=RUNNING_MAX)
        return tuple(self._started(row, key.namespace) for row in found)

    async def mark_cancelled(self, key: ScheduleKey, instant: dt.datetime) -> None:
        """Note that what a run started was cancelled for the sake of another."""
        await self._context.execute(_SQL["cancel_run"], key, instant=instant)

    async def last(self, key: ScheduleKey, *, limit: int) -> tuple[ScheduleRun, ...]:
        return await self._read(key, instant=None, limit=limit)

    async def delete_old(
        self, slot: int, at: DeletedTo, *, kept: int, age: dt.timedelta, limit: int
    ) -> Deleted:
        """Delete records of one slot, but for the last `kept` of each schedule within `age`.

        A call goes on where the one before has ended, and looks at no more than `limit` of them.
        """
        [found] = await self._context.call(
            self._delete_old_runs,
            at,
            slot=slot,
            kept=kept,
            age=age.total_seconds(),
            limit=limit,
        )
        return Deleted(found.deleted_count, None if found.is_done else found.at)

    async def now(self) -> dt.datetime:
        return await self._context.now()

    async def _read(
        self, key: ScheduleKey, *, instant: dt.datetime | None, limit: int
    ) -> tuple[ScheduleRun, ...]:
        return tuple(
            await self._context.call(self._read_schedule_runs, key, instant=instant, limit=limit)
        )


def item_of(due: DueSchedule, plan: Plan) -> Item:
    return Item(
        schedule=due.schedule,
        what=plan.what,
        cause=ScheduleRunCause.TIME,
        policy=due.timing.overlap_policy,
        due=due.upcoming,
        then=plan.then,
    )


def schedule_target(schedule: Schedule) -> ScheduleTarget:
    target = schedule.spec.target
    match target:
        case CallTarget():
            name, id_ = target.task_type.value, target.process_id
        case StartTarget():
            name, id_ = START, target.template
        case JobTarget():
            name, id_ = JOB, target.template
        case _:
            assert_never(target)
    return ScheduleTarget(
        key=schedule.key,
        revision=schedule.revision,
        target=name,
        target_id=id_,
        is_gated=not isinstance(target, JobTarget) and target.constraints is not None,
    )


def _columns_of(items: Sequence[Item]) -> dict[str, object]:
    keys = [item.schedule.key for item in items]
    instants = [item.upcoming for item in items]
    missed = [item.what if isinstance(item.what, Missed) else None for item in items]
    processes = [item.schedule.process_at(item.upcoming.instant) for item in items]
    return {
        "slot": [key.slot for key in keys],
        "namespace": [key.namespace for key in keys],
        "schedule_id": [key.schedule_id for key in keys],
        "revision": [item.schedule.revision for item in items],
        "next_at": [item.due and item.due.due_at for item in items],
        "cause": [item.cause.value for item in items],
        "overlap_policy": [item.policy.value for item in items],
        "was_queued": [item.was_queued for item in items],
        "instant": [it.instant for it in instants],
        "due_at": [it.due_at for it in instants],
        "then_instant": [item.then and item.then.instant for item in items],
        "then_at": [item.then and item.then.due_at for item in items],
        "missed_count": [it and it.count for it in missed],
        "missed_until": [it and it.until for it in missed],
        "idempotency_key": [item.idempotency_key for item in items],
        "process_slot": [process.slot for process in processes],
        "process_id": [process.process_id for process in processes],
        "task_key": [
            run_key(key.schedule_id, it.instant) for key, it in zip(keys, instants, strict=True)
        ],
        "trace_context": [json_text(item.trace_context) for item in items],
    }
