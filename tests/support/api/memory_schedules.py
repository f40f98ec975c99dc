"""Schedules in memory, for a server without PostgreSQL: kept, and ran when told to."""

import datetime as dt
from collections.abc import Mapping, Sequence

from progressor import job_errors
from progressor.domain.schedules.schedule import (
    Calendar,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleRunCause,
    ScheduleRunState,
    ScheduleSpec,
    Upcoming,
)

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class MemorySchedules:
    """Keeps schedules, and notes what is asked of them; it is always NOW."""

    def __init__(self) -> None:
        self.kept: dict[ScheduleKey, Schedule] = {}
        self.backfilled: list[tuple[Sequence[Upcoming], OverlapPolicy]] = []

    async def create(
        self, key: ScheduleKey, spec: ScheduleSpec, *, paused: bool, note: str
    ) -> Schedule:
        """Keep one."""
        if key in self.kept:
            raise job_errors.ScheduleAlreadyExistsError(key.namespace, key.schedule_id)
        return self._keep(key, spec, paused=paused, note=note, revision=1)

    async def get(self, key: ScheduleKey) -> Schedule:
        if key not in self.kept:
            raise job_errors.ScheduleNotFoundError(key.namespace, key.schedule_id)
        return self.kept[key]

    async def list(self, namespace: str, *, after: str, limit: int) -> tuple[Schedule, ...]:
        """Return some, by their ids."""
        found = sorted(
            (each for each in self.kept.values() if each.key.namespace == namespace),
            key=lambda each: each.key.schedule_id,
        )
        return tuple(each for each in found if each.key.schedule_id > after)[:limit]

    async def update(
        self, key: ScheduleKey, spec: ScheduleSpec, *, expected_revision: int
    ) -> Schedule:
        """Keep another spec."""
        old = await self._at(key, expected_revision)
        return self._keep(key, spec, paused=old.paused, note=old.note, revision=old.revision + 1)

    async def pause(self, key: ScheduleKey, *, note: str, expected_revision: int) -> Schedule:
        old = await self._at(key, expected_revision)
        return self._keep(key, old.spec, paused=True, note=note, revision=old.revision + 1)

    async def resume(self, key: ScheduleKey, *, note: str, expected_revision: int) -> Schedule:
        old = await self._at(key, expected_revision)
        return self._keep(key, old.spec, paused=False, note=note, revision=old.revision + 1)

    async def delete(self, key: ScheduleKey, *, expected_revision: int) -> None:
        """Forget one."""
        await self._at(key, expected_revision)
        del self.kept[key]

    async def backfill(
        self, schedule: Schedule, instants: Sequence[Upcoming], policy: OverlapPolicy
    ) -> int:
        """Note what is asked for."""
        await self.get(schedule.key)
        self.backfilled.append((instants, policy))
        return len(instants)

    async def _at(self, key: ScheduleKey, expected_revision: int) -> Schedule:
        schedule = await self.get(key)
        if expected_revision not in {0, schedule.revision}:
            raise job_errors.ScheduleChangedError(
                key.schedule_id, expected_revision, schedule.revision
            )
        return schedule

    def _keep(
        self, key: ScheduleKey, spec: ScheduleSpec, *, paused: bool, note: str, revision: int
    ) -> Schedule:
        schedule = self.kept[key] = Schedule(
            key=key,
            spec=spec,
            paused=paused,
            note=note,
            revision=revision,
            created_at=NOW,
            updated_at=NOW,
            upcoming=None if paused else Calendar(key, spec.timing).upcoming(NOW),
            started_count=0,
            skipped_count=0,
            missed_count=0,
            refused_count=0,
        )
        return schedule


class MemoryScheduleRuns:
    """Notes what is triggered."""

    def __init__(self, schedules: MemorySchedules) -> None:
        self._schedules = schedules
        self.ran: list[ScheduleRun] = []

    async def trigger(
        self,
        key: ScheduleKey,
        *,
        policy: OverlapPolicy | None,
        idempotency_key: str | None,
        trace_context: Mapping[str, str],
    ) -> ScheduleRun:
        """Run one, as of NOW."""
        del policy, idempotency_key, trace_context
        await self._schedules.get(key)
        run = ScheduleRun(
            instant=NOW,
            cause=ScheduleRunCause.TRIGGER,
            state=ScheduleRunState.RUNNING,
            due_at=NOW,
            recorded_at=NOW,
            started_at=NOW,
            process_id=f"{key.schedule_id}/now",
            task_id=7,
        )
        self.ran.append(run)
        return run

    async def last(self, key: ScheduleKey, *, limit: int) -> tuple[ScheduleRun, ...]:
        """Return what was triggered of any."""
        await self._schedules.get(key)
        return tuple(self.ran[::-1][:limit])
