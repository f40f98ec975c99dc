"""Firings: what schedules start when they are due, each instant once.

``priv/functions/schedules/fire_schedules.sql`` does it, in one transaction under the locks of the
schedules; a claim before it only divides the work among replicas.
"""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import TaskError, TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    Firing,
    FiringCause,
    FiringState,
    JobTarget,
    Missed,
    OverlapPolicy,
    Plan,
    Schedule,
    ScheduleKey,
    StartTarget,
    Timing,
    Upcoming,
    firing_key,
    target_id,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.arrays import (
    BoolColumn,
    InstantColumn,
    Int2Column,
    Int8Column,
    JsonColumn,
    TextColumn,
)
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, connection_of
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.gate_effects import PATIENCE, OnPromoted, Promoted, ignore, promoted
from progressor.storage.rows.schedules import JOB, START, timing_of, upcoming_of

_SQL = statements.load("schedules/schedules")

RUNNING_MAX = 1000
"""Runs of a schedule that are looked at."""

FIRST = ScheduleKey(-1, "", "")
"""Before all schedules, in the order of their keys."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A schedule as far as firing it needs: where it is, and what it starts.

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

    fired: Fired
    timing: Timing
    upcoming: Upcoming
    now: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuedFiring:
    """The oldest queued firing of a schedule; ``is_ready``: it may be started."""

    fired: Fired
    upcoming: Upcoming
    cause: FiringCause
    policy: OverlapPolicy
    is_ready: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A firing to be done; at most one of a schedule in a batch.

    ``due`` is what its instant was claimed by, and ``then`` what comes next; both only for time.
    ``what`` is Missed only there. ``trace_context`` goes with what is started.
    """

    fired: Fired
    what: Upcoming | Missed
    cause: FiringCause
    policy: OverlapPolicy
    was_queued: bool = False
    due: Upcoming | None = None
    then: Upcoming | None = None
    idempotency_key: str | None = None
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def upcoming(self) -> Upcoming:
        """The instant; the first of those that were missed."""
        return self.what.first if isinstance(self.what, Missed) else self.what


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of an item, as `fire_schedules` says it; ``fired_at`` by PostgreSQL's clock."""

    item: Item
    verdict: str
    fired_at: dt.datetime
    task_id: int | None
    reason: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a firing has started, or called."""

    instant: dt.datetime
    process: ProcessKey
    task_type: TaskType
    task_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeletedTo:
    """Where in a slot the deletion of old firings is.

    ``instant``: within that schedule; None: behind it. ``kept_at`` and ``kept_instant`` are of the
    latest firing of it that is not kept, if there is one.
    """

    namespace: str = ""
    schedule_id: str = ""
    instant: dt.datetime | None = None
    kept_at: dt.datetime | None = None
    kept_instant: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Deleted:
    """How many old firings were deleted, and where to go on; None: the slot is done."""

    count: int
    next: DeletedTo | None


class Firings:
    """Claims, fires and reads what schedules fire."""

    def __init__(  # noqa: PLR0913  what it writes by, and how
        self,
        *,
        pool: Pool,
        functions: Functions,
        clock: Clock,
        replica_id: Callable[[], int],
        statement_timeout: dt.timedelta,
        patience: dt.timedelta = PATIENCE,
        on_promoted: OnPromoted = ignore,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._replica_id = replica_id
        self._statement_timeout = statement_timeout.total_seconds()
        self._patience = patience.total_seconds()
        self._on_promoted = on_promoted
        self._claim = functions.call("claim_schedules").statement
        self._fire = functions.call("fire_schedules").statement
        self._find_queued = functions.call("find_queued_firings").statement
        self._read = functions.call("read_firings").statement
        self._running = functions.call("running_firings").statement
        self._delete_old = functions.call("delete_old_firings").statement

    async def claim_due(self, *, limit: int, lease: dt.timedelta) -> tuple[DueSchedule, ...]:
        """Claim at most `limit` schedules that are due, the longest overdue first.

        Others leave them alone for `lease`; but it decides nothing.
        """
        found = await self._rows(self._claim, self._clock.pinned(), lease.total_seconds(), limit)
        return tuple(_due_of(row) for row in found)

    async def seconds_until_due(self) -> float | None:
        """Return when the next unclaimed schedule is due, or None if there is none."""
        found = await self._named("find_next_due", {"now": self._clock.pinned()})
        return max(0.0, found[0][0]) if found else None

    async def find_queued(self, *, after: ScheduleKey, limit: int) -> tuple[QueuedFiring, ...]:
        """Look at the oldest queued firing of at most `limit` schedules behind `after`."""
        found = await self._rows(
            self._find_queued, limit, after.slot, after.namespace, after.schedule_id
        )
        return tuple(_queued_of(row) for row in found)

    async def fire(self, items: Sequence[Item]) -> tuple[Done, ...]:
        """Fire what is due, all of one kind, and return what became of each, in their order.

        Raises:
            StorageConflictError: Nothing was done; it may be repeated at once.
            StorageLockedError: Another transaction keeps one of them locked; nothing was changed.
            StorageUnavailableError: Whether it was done is unknown; to repeat it does no harm.
        """
        kinds = {item.fired.kind for item in items}
        assert len(kinds) == 1, f"{kinds}: one kind in a batch"
        found = await self._rows(
            self._fire,
            self._clock.pinned(),
            self._replica_id(),
            self._patience,
            kinds.pop(),
            *_columns_of(items),
        )
        results: list[Done | None] = [None] * len(items)
        due: list[tuple[ProcessKey, int]] = []
        for place, verdict, fired_at, task_id, is_due, reason, told in found:
            if not place:
                self._on_promoted(promoted(told))
                continue
            item = items[place - 1]
            results[place - 1] = Done(
                item=item, verdict=verdict, fired_at=fired_at, task_id=task_id, reason=reason
            )
            if is_due:
                due.append((item.fired.process_at(item.upcoming.instant), task_id))
        if due:
            self._on_promoted(Promoted(due=tuple(due)))
        done = tuple(result for result in results if result is not None)
        assert len(done) == len(items), "a batch came back with items missing"
        return done

    async def by_key(self, key: ScheduleKey, idempotency_key: str) -> Firing | None:
        """Return the firing of the trigger that came with a key before."""
        named = _key_columns(key) | {"idempotency_key": idempotency_key}
        found = await self._named("firing_by_key", named)
        return await self.at(key, found[0][0]) if found else None

    async def at(self, key: ScheduleKey, instant: dt.datetime) -> Firing | None:
        """Return the firing of an instant."""
        found = await self._rows(self._read, *dataclasses.astuple(key), instant, 1)
        return _firing_of(found[0]) if found and found[0][0] == instant else None

    async def running(self, key: ScheduleKey) -> tuple[Run, ...]:
        """Return what firings have started and what has not ended, the oldest first."""
        found = await self._rows(self._running, *dataclasses.astuple(key), RUNNING_MAX)
        return tuple(
            Run(
                instant=row[0],
                process=ProcessKey(row[1], key.namespace, row[2]),
                task_type=TaskType(row[3]),
                task_id=row[4],
            )
            for row in found
        )

    async def mark_cancelled(self, key: ScheduleKey, instant: dt.datetime) -> None:
        """Note that what a firing started was cancelled for the sake of another."""
        named = _key_columns(key) | {"instant": instant, "now": self._clock.pinned()}
        await self._named("cancel_firing", named)

    async def last(self, key: ScheduleKey, *, limit: int) -> tuple[Firing, ...]:
        """Read at most `limit` firings, the latest first, with where their runs are now."""
        found = await self._rows(self._read, *dataclasses.astuple(key), None, limit)
        return tuple(_firing_of(row) for row in found)

    async def delete_old(
        self, slot: int, at: DeletedTo, *, kept: int, age: dt.timedelta, limit: int
    ) -> Deleted:
        """Delete records of one slot, but for the last `kept` of each schedule within `age`.

        A call goes on where the one before has ended, and looks at no more than `limit` of them.
        """
        [found] = await self._rows(
            self._delete_old,
            self._clock.pinned(),
            slot,
            kept,
            age.total_seconds(),
            limit,
            *dataclasses.astuple(at),
        )
        return Deleted(found[0], None if found[1] is None else DeletedTo(*found[1:]))

    async def now(self) -> dt.datetime:
        """Return PostgreSQL's time."""
        found = await self._named("read_now", {"now": self._clock.pinned()})
        now = found[0][0]
        assert isinstance(now, dt.datetime), "PostgreSQL tells its time"
        return now

    async def _rows(self, statement: bytes, *arguments: object) -> Sequence[rows.Row]:
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(statement, arguments, binary=True)
            return await cursor.fetchall()

    async def _named(self, name: str, named: Mapping[str, Any]) -> Sequence[rows.Row]:
        async with (
            connection_of(self._pool) as connection,
            asyncio.timeout(self._statement_timeout),
        ):
            cursor = await connection.execute(_SQL[name], named, binary=True)
            return await cursor.fetchall()


def item_of(due: DueSchedule, plan: Plan) -> Item:
    """Return what is to be done with a schedule that is due."""
    return Item(
        fired=due.fired,
        what=plan.what,
        cause=FiringCause.TIME,
        policy=due.timing.overlap_policy,
        due=due.upcoming,
        then=plan.then,
    )


def fired_of(schedule: Schedule) -> Fired:
    """Return what firing a schedule needs of it."""
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
    return Fired(
        key=schedule.key,
        revision=schedule.revision,
        target=name,
        target_id=id_,
        is_gated=not isinstance(target, JobTarget) and target.constraints is not None,
    )


def _columns_of(items: Sequence[Item]) -> list[object]:
    keys = [item.fired.key for item in items]
    instants = [item.upcoming for item in items]
    missed = [item.what if isinstance(item.what, Missed) else None for item in items]
    processes = [item.fired.process_at(item.upcoming.instant) for item in items]
    return [
        Int2Column([key.slot for key in keys]),
        TextColumn([key.namespace for key in keys]),
        TextColumn([key.schedule_id for key in keys]),
        Int8Column([item.fired.revision for item in items]),
        InstantColumn([None if item.due is None else item.due.due_at for item in items]),
        TextColumn([item.cause.value for item in items]),
        TextColumn([item.policy.value for item in items]),
        BoolColumn([item.was_queued for item in items]),
        InstantColumn([it.instant for it in instants]),
        InstantColumn([it.due_at for it in instants]),
        InstantColumn([None if item.then is None else item.then.instant for item in items]),
        InstantColumn([None if item.then is None else item.then.due_at for item in items]),
        Int8Column([None if it is None else it.count for it in missed]),
        InstantColumn([None if it is None else it.until for it in missed]),
        TextColumn([item.idempotency_key for item in items]),
        Int2Column([process.slot for process in processes]),
        TextColumn([process.process_id for process in processes]),
        TextColumn(
            [
                firing_key(key.schedule_id, it.instant)
                for key, it in zip(keys, instants, strict=True)
            ]
        ),
        JsonColumn([rows.json_text(item.trace_context) for item in items]),
    ]


def _due_of(row: rows.Row) -> DueSchedule:
    upcoming = upcoming_of(row[16], row[17])
    assert upcoming is not None, "what is due has an instant"
    return DueSchedule(
        fired=Fired(
            key=ScheduleKey(*row[:3]),
            target=row[12],
            target_id=row[13],
            is_gated=row[14],
            revision=row[15],
        ),
        timing=timing_of(row[3:12]),
        upcoming=upcoming,
        now=row[18],
    )


def _queued_of(row: rows.Row) -> QueuedFiring:
    return QueuedFiring(
        fired=Fired(
            key=ScheduleKey(*row[:3]),
            target=row[3],
            target_id=row[4],
            is_gated=row[5],
            revision=row[6],
        ),
        upcoming=Upcoming(row[7], row[8]),
        cause=FiringCause(row[9]),
        policy=OverlapPolicy(row[10]),
        is_ready=row[11],
    )


def _firing_of(row: rows.Row) -> Firing:
    error = None
    if row[10] is not None:
        error = TaskError(code=row[9], reason=row[10], message=row[11] or "")
    return Firing(
        instant=row[0],
        cause=FiringCause(row[1]),
        state=FiringState(row[2]),
        due_at=row[3],
        fired_at=row[4],
        started_at=row[5],
        ended_at=row[6],
        process_id=row[7],
        task_id=row[8],
        error=error,
        missed_count=row[12] or 0,
        missed_until=row[13],
    )


def _key_columns(key: ScheduleKey) -> dict[str, Any]:
    return {"slot": key.slot, "namespace": key.namespace, "schedule_id": key.schedule_id}
