"""Schedules: reading and setting them; their runs are in ``runs``.

Instants are computed here, between a read and a write: the write counts only if the schedule is
still at the revision that was read.
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from progressor import errors, job_errors
from progressor.domain.schedules.schedule import (
    Calendar,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleSpec,
    Upcoming,
)
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.rows.documents import target_columns, timing_columns

_SQL = statements.load("schedules/schedules")
_CHANGE_ATTEMPTS_MAX = 10

Change = Callable[[Schedule, dt.datetime], Mapping[str, Any]]
"""Returns the parameters of a change, of the schedule as it stands and of now."""


class _BackfilledRow(NamedTuple):
    verdict: str
    queued_count: int
    forgotten_from: dt.datetime
    forgotten_until: dt.datetime


class _DeletedRow(NamedTuple):
    revision: int | None
    deleted: bool


class Schedules:
    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self.changed = asyncio.Event()
        """Set when this replica has made or changed a schedule."""
        self._backfill_schedule = context.functions.call("backfill_schedule", _BackfilledRow)
        self._delete_schedule = context.functions.call("delete_schedule", _DeletedRow)

    async def create(
        self, key: ScheduleKey, spec: ScheduleSpec, *, paused: bool, note: str
    ) -> Schedule:
        """Make a schedule, which is due first at its first instant after now.

        Raises:
            NamespaceNotFoundError: There is none.
            ScheduleAlreadyExistsError: The id is taken.
        """
        now = await self._context.now()
        upcoming = None if paused else Calendar(key, spec.timing).upcoming(now)
        columns = timing_columns(spec.timing) | target_columns(key, spec.target)
        if await self._context.execute(
            _SQL["create_schedule"], key,
            **columns, **_upcoming_columns(upcoming), paused=paused, note=note, now=now,
        ):  # fmt: skip
            self.changed.set()
            return await self.get(key)
        # Either the id is taken, or there is no such namespace.
        with contextlib.suppress(job_errors.ScheduleNotFoundError):
            await self.get(key)
            raise job_errors.ScheduleAlreadyExistsError(key.namespace, key.schedule_id)
        raise errors.NamespaceNotFoundError(key.namespace)

    async def get(self, key: ScheduleKey) -> Schedule:
        """Read a schedule.

        Raises:
            ScheduleNotFoundError: There is none.
        """
        found = await self._context.read(Schedule, _SQL["read_schedules"], key, after="", limit=1)
        if not found:
            raise job_errors.ScheduleNotFoundError(key.namespace, key.schedule_id)
        return found[0]

    async def list(self, namespace: str, *, after: str, limit: int) -> tuple[Schedule, ...]:
        """Read at most `limit` schedules with ids above `after`, in order, without their args."""
        return await self._context.read(
            Schedule,
            _SQL["read_schedules"],
            namespace=namespace,
            schedule_id=None,
            after=after,
            limit=limit,
        )

    async def update(
        self, key: ScheduleKey, spec: ScheduleSpec, *, expected_revision: int
    ) -> Schedule:
        """Replace the spec of a schedule.

        Raises:
            ScheduleNotFoundError: There is none.
            ScheduleChangedError: It is at another revision.
        """
        columns = timing_columns(spec.timing) | target_columns(key, spec.target)
        calendar = Calendar(key, spec.timing)

        def change(schedule: Schedule, now: dt.datetime) -> dict[str, Any]:
            is_same = schedule.spec.timing.has_instants_of(spec.timing)
            return columns | _upcoming_columns(calendar.upcoming(now)) | {"is_same": is_same}

        return await self._change("update_schedule", key, change, expected_revision)

    async def pause(self, key: ScheduleKey, *, note: str, expected_revision: int) -> Schedule:
        """Pause a schedule; raises what `update` raises."""
        return await self._change(
            "pause_schedule", key, lambda _schedule, _now: {"note": note}, expected_revision
        )

    async def resume(self, key: ScheduleKey, *, note: str, expected_revision: int) -> Schedule:
        """Resume a schedule from its next instant; raises what `update` raises."""

        def change(schedule: Schedule, now: dt.datetime) -> dict[str, Any]:
            upcoming = Calendar(key, schedule.spec.timing).upcoming(now)
            return _upcoming_columns(upcoming) | {"note": note}

        return await self._change("resume_schedule", key, change, expected_revision)

    async def delete(self, key: ScheduleKey, *, expected_revision: int) -> None:
        """Delete a schedule with its runs; raises what `update` raises."""
        [found] = await self._context.call(self._delete_schedule, key, expected=expected_revision)
        if found.revision is None:
            raise job_errors.ScheduleNotFoundError(key.namespace, key.schedule_id)
        if not found.deleted:
            raise job_errors.ScheduleChangedError(
                key.schedule_id, expected_revision, found.revision
            )

    async def backfill(
        self, schedule: Schedule, instants: Sequence[Upcoming], policy: OverlapPolicy
    ) -> int:
        """Queue instants of the past, and return how many were not run, or queued, before.

        Raises:
            ScheduleNotFoundError: It has been deleted.
            ScheduleChangedError: It has changed since `schedule` was read.
            InvalidRequestError: Some are where the record of runs is gone.
        """
        key = schedule.key
        [found] = await self._context.call(
            self._backfill_schedule,
            key,
            revision=schedule.revision,
            overlap_policy=policy.value,
            instant=[it.instant for it in instants],
            due_at=[it.due_at for it in instants],
        )
        if found.verdict == "not_found":
            raise job_errors.ScheduleNotFoundError(key.namespace, key.schedule_id)
        if found.verdict == "changed":
            raise job_errors.ScheduleChangedError(
                key.schedule_id, schedule.revision, schedule.revision + 1
            )
        if found.verdict == "forgotten":
            description = (
                f"the record of runs from {found.forgotten_from.isoformat()} to "
                f"{found.forgotten_until.isoformat()} is gone: whether they happened is not known"
            )
            raise errors.InvalidRequestError(errors.FieldViolation("since", description))
        return found.queued_count

    async def _change(
        self,
        statement: str,
        key: ScheduleKey,
        change: Change,
        expected_revision: int,
    ) -> Schedule:
        """Read, compute and write; retry as long as another transaction was faster."""
        for _ in range(_CHANGE_ATTEMPTS_MAX):
            schedule = await self.get(key)
            if expected_revision not in {0, schedule.revision}:
                raise job_errors.ScheduleChangedError(
                    key.schedule_id, expected_revision, schedule.revision
                )
            now = await self._context.now()
            changed = change(schedule, now)
            if await self._context.execute(
                _SQL[statement], key, now=now, revision=schedule.revision, **changed
            ):
                self.changed.set()
                return await self.get(key)
        raise errors.StorageConflictError("the schedule keeps changing")


def _upcoming_columns(upcoming: Upcoming | None) -> dict[str, Any]:
    return {
        "next_instant": None if upcoming is None else upcoming.instant,
        "next_at": None if upcoming is None else upcoming.due_at,
    }
