"""A report of each night's sales: a schedule with a time zone, and the process that it starts.

The schedule follows local time in Berlin. A night in which the clocks change also has exactly one
report. The scenario does not wait for the night: after the schedule is created, its times are
replaced by an interval of one second.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from rich.console import Console

from progressor.example.scenario import Scenario, ScenarioError
from progressor.sdk import (
    Cron,
    Every,
    OverlapPolicy,
    Processor,
    ProcessStatus,
    ScheduledStart,
    ScheduleRunCause,
    ScheduleSpec,
    Step,
)

TIME_ZONE = "Europe/Berlin"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a report. A real one would read the sales of a day, which takes minutes."""

    subject: str
    seconds: float = 0.1


def at_night(report: Report) -> ScheduleSpec:
    """Return the schedule: half past two in Berlin, never two reports at once."""
    return ScheduleSpec(
        times=Cron("30 2 * * *", TIME_ZONE),
        target=ScheduledStart(report),
        overlap_policy=OverlapPolicy.SKIP,
    )


def reports(written: Callable[[str], None]) -> Processor[Any]:
    """Return the processor, which calls `written` with the process id of each report."""
    processor = Processor("nightly-reports")

    @processor.init
    async def write(step: Step[Any]) -> None:
        report: Report = step.args_as(Report)
        await asyncio.sleep(report.seconds)
        step.complete({"report": report.subject})
        written(step.process_id)

    return processor


_NIGHTS = 3
# When the clocks go forward, half past two is skipped, and the run comes at three.
_AT = frozenset({"02:30", "03:00"})
_RUNS = 2


class NightlyScenario(Scenario):
    """The next runs of the schedule, one run by a trigger, and two by a faster interval."""

    goal = "write the reports"
    commands = ("schedule list -n {namespace}", "trace -n {namespace} {id}")

    def __init__(self, *, console: Console, run: str) -> None:
        super().__init__(console=console, run=run)
        self._schedule_id = f"sales-{run}"
        self._written: asyncio.Queue[str] = asyncio.Queue()
        self.processor = reports(self._written.put_nowait)

    async def _play(self) -> tuple[str, ...]:
        schedules, schedule_id = self._client.schedules, self._schedule_id
        with self._step("create", schedule_id, "half past two in Berlin, each night"):
            await schedules.create(schedule_id, at_night(Report(subject="sales")), note="example")
            view = await schedules.get(schedule_id, next_count=_NIGHTS)
            zone = ZoneInfo(TIME_ZONE)
            nights = [f"{it.instant.astimezone(zone):%H:%M}" for it in view.next_runs]
            if len(nights) != _NIGHTS or not set(nights) <= _AT:
                raise ScenarioError("run at half past two", str(nights))
            self._answered(f"the next {_NIGHTS} nights at {', '.join(nights)} local time")
        with self._step("trigger", schedule_id, "now, in addition to its own instants"):
            run = await schedules.trigger(schedule_id, idempotency_key="by-hand")
            # Sent again with the same key, it starts no second report.
            again = await schedules.trigger(schedule_id, idempotency_key="by-hand")
            if again.process_id != run.process_id or run.error is not None:
                raise ScenarioError("run once", f"{run} and {again}")
            written = [await self._report()]
        with self._step("update", schedule_id, "each second, independent of local time"):
            spec = dataclasses.replace(view.schedule.spec, times=Every(1))
            revision = view.schedule.revision
            await schedules.update(schedule_id, spec, expected_revision=revision)
            written += [await self._report() for _ in range(_RUNS)]
            await schedules.pause(schedule_id, note="seen enough")
        with self._step("get", schedule_id, "its past runs"):
            view = await schedules.get(schedule_id, last_count=100)
            causes = [it.cause for it in view.last_runs]
            if not view.schedule.paused or view.next_runs:
                raise ScenarioError("pause", f"{len(view.next_runs)} next runs")
            if causes.count(ScheduleRunCause.TRIGGER) != 1 or len(causes) <= _RUNS:
                raise ScenarioError("record each run", str(causes))
            self._answered(f"one by a trigger, at least {_RUNS} by time; it is paused")
        return tuple(written)

    async def _report(self) -> str:
        """Wait for the next report; return its process id."""
        process_id = await self._written.get()
        task_id = (await self._client.trace(process_id)).tasks[0].task_id
        await self._client.await_task(process_id, task_id=task_id)
        process = (await self._client.get(process_id)).process
        if process.status is not ProcessStatus.FINISHED:
            raise ScenarioError("write a report", f"{process_id} is {process.status}")
        self._answered(f"{process.result['report']} reported")
        return process_id
