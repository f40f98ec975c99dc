"""Schedules as one or two replicas run them, on PostgreSQL, under a clock that tests move."""

import dataclasses
import datetime as dt
import itertools
from collections.abc import Sequence
from typing import Any, cast

from psycopg import sql

from progressor import job_errors
from progressor.domain.jobs.job import Job
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.schedules.schedule import (
    CronTimes,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleSpec,
    StartTarget,
    Target,
    Times,
    Timing,
    schedule_key,
)
from progressor.runtime.core.context import Observers
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.schedules import ScheduleRuns, ScheduleScan
from progressor.settings.sections import ReplicaSettings, Scanner
from progressor.storage.schedules.runs import StoredRuns
from progressor.storage.schedules.schedules import Schedules
from progressor.telemetry.metrics.registry import Metrics
from tests.support.clock import ManualClock
from tests.support.runtime.harness import make_context
from tests.support.storage.store import LEASE_TIMEOUT, NAMESPACE, Store

MINUTE = dt.timedelta(minutes=1)
MINUTELY = CronTimes("* * * * *", "UTC")

_numbers = itertools.count(1)


def fresh_schedule_key(namespace: str = NAMESPACE.name) -> ScheduleKey:
    return schedule_key(namespace, f"s{next(_numbers)}")


def a_spec(target: Target | None = None, times: Times = MINUTELY, **timing: Any) -> ScheduleSpec:
    """Return a spec: each minute, a process, unless said otherwise."""
    return ScheduleSpec(timing=Timing(times=times, **timing), target=target or StartTarget())


def process_of(run: ScheduleRun) -> ProcessKey:
    assert run.process_id is not None
    return process_key(NAMESPACE.name, run.process_id)


class NoJobs:
    """Jobs where there are none."""

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        del reason
        raise job_errors.JobNotFoundError(key.namespace, key.process_id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ender:
    """Ends what an earlier run has started, as a client does."""

    store: Store

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        return await self.store.cancel(key, task)

    async def halt(self, key: ProcessKey, detail: str) -> None:
        await self.store.halt(key, detail)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStore:
    store: Store
    schedules: Schedules
    runs: StoredRuns
    schedule_runs: ScheduleRuns
    scan: ScheduleScan
    metrics: Metrics
    ran: list[dict[str, object]]
    """What was run, oldest first."""

    @property
    def clock(self) -> ManualClock:
        return self.store.clock

    async def create(self, spec: ScheduleSpec | None = None, *, paused: bool = False) -> Schedule:
        return await self.schedules.create(
            fresh_schedule_key(), spec or a_spec(), paused=paused, note=""
        )

    async def run_due(self) -> list[str]:
        """Run all that is due, and return what became of it, in order."""
        before = len(self.ran)
        while await self.scan.run_due():
            pass
        return [str(each["verdict"]) for each in self.ran[before:]]

    async def after(self, duration: dt.timedelta) -> list[str]:
        self.clock.advance(duration)
        return await self.run_due()

    async def count(self, table: str) -> int:
        async with self.store.pool.connection() as connection:
            query = sql.SQL("SELECT count(*) FROM progressor.{}").format(sql.Identifier(table))
            [(count,)] = await (await connection.execute(query)).fetchall()
        return int(count)

    async def look_at_queue(self) -> list[str]:
        """Start what is queued and may start, and return what became of it."""
        before = len(self.ran)
        await self.scan.scan()
        return [str(each["verdict"]) for each in self.ran[before:]]

    async def last(self, schedule: Schedule) -> Sequence[ScheduleRun]:
        return (await self.runs.last(schedule.key, limit=1000))[::-1]

    async def states(self, schedule: Schedule) -> list[str]:
        return [each.state.value for each in await self.last(schedule)]


def schedule_store(store: Store) -> ScheduleStore:
    metrics, observers = Metrics(), Observers()
    storage = dataclasses.replace(store.context, clock=store.clock)
    ran: list[dict[str, object]] = []
    observers.add(lambda point, facts: ran.append(facts) if point == "schedule_run" else None)
    schedules = Schedules(storage)
    runs = StoredRuns(storage)
    context = make_context(
        observers=observers,
        metrics=metrics,
        replica=ReplicaSettings(lease_timeout=LEASE_TIMEOUT),
        scanner=Scanner(interval=dt.timedelta(seconds=1)),
    )
    schedule_runs = ScheduleRuns(
        runs=runs,
        schedules=schedules,
        requests=cast("Any", Ender(store=store)),
        jobs=cast("Any", NoJobs()),
        effects=cast("EffectDispatcher", store.effects),
        context=context,
    )
    scan = ScheduleScan(schedule_runs=schedule_runs, context=context)
    return ScheduleStore(
        store=store,
        schedules=schedules,
        runs=runs,
        schedule_runs=schedule_runs,
        scan=scan,
        metrics=metrics,
        ran=ran,
    )
