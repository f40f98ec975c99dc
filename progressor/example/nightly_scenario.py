"""A nightly schedule: its next runs, one run by a trigger, and two by a faster interval.

The example does not wait for the night: after the schedule is created, its times are replaced by an
interval of one second.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.text import Text

from progressor.example.nightly import TIME_ZONE, Report, at_night, reports
from progressor.example.scenario import ScenarioError, attempting, explaining
from progressor.sdk import (
    Client,
    Every,
    NextRun,
    ProcessStatus,
    ScheduleRun,
    ScheduleRunCause,
    ScheduleRunState,
)

_TIMEOUT_SECONDS = 30.0
_NIGHTS = 3
# When the clocks go forward, half past two is skipped, and the run comes at three.
_AT = frozenset({"02:30", "03:00"})
_RUNS = 2


class NightlyScenario:
    """One run, printed as it happens; `run` makes the id of its schedule unique."""

    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console = console
        self._schedule_id = f"sales-{run}"
        self._written: asyncio.Queue[str] = asyncio.Queue()
        self.processor = reports(self._observe)

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, which takes seconds; return the process ids of the reports.

        Args:
            client: Its namespace is that of the reports.

        Raises:
            ScenarioError: An unexpected result; the message says which.
        """
        self._client = client
        async with attempting("write the reports", seconds=_TIMEOUT_SECONDS):
            await self._create()
            triggered = await self._trigger()
            by_time = await self._let_run()
            await self._check_record()
        return triggered, *by_time

    def _observe(self, process_id: str, what: str) -> None:
        if what == "is written":
            self._written.put_nowait(process_id)

    async def _create(self) -> None:
        with self._step("create", "half past two in Berlin, each night"):
            spec = at_night(Report(subject="sales"))
            made = await self._client.schedules.create(self._schedule_id, spec, note="the example")
            view = await self._client.schedules.get(made.schedule_id, next_count=_NIGHTS)
            nights = [_local_time(it) for it in view.next_runs]
            if len(nights) != _NIGHTS or not set(nights) <= _AT:
                raise ScenarioError("run at half past two", str(nights))
            self._answered(f"the next {_NIGHTS} nights at {', '.join(nights)} local time")

    async def _trigger(self) -> str:
        with self._step("trigger", "now, in addition to its own instants"):
            run = await self._client.schedules.trigger(self._schedule_id, idempotency_key="by-hand")
            # Sent again with the same key, it starts no second report.
            again = await self._client.schedules.trigger(
                self._schedule_id, idempotency_key="by-hand"
            )
            if again.process_id != run.process_id:
                raise ScenarioError("run once", f"{run.process_id} and {again.process_id}")
            self._expect_started(run)
            await self._check_report(await self._written.get())
            return run.process_id

    async def _let_run(self) -> tuple[str, ...]:
        with self._step("update", "each second, independent of local time"):
            view = await self._client.schedules.get(self._schedule_id)
            spec = dataclasses.replace(view.schedule.spec, times=Every(1))
            await self._client.schedules.update(
                self._schedule_id, spec, expected_revision=view.schedule.revision
            )
            written = [await self._written.get() for _ in range(_RUNS)]
            await self._client.schedules.pause(self._schedule_id, note="seen enough")
            for process_id in written:
                await self._check_report(process_id)
        return tuple(written)

    async def _check_record(self) -> None:
        with self._step("get", "its past runs"):
            view = await self._client.schedules.get(self._schedule_id, last_count=100)
            if not view.schedule.paused or view.next_runs:
                raise ScenarioError("pause", f"{len(view.next_runs)} next runs")
            triggered = [it for it in view.last_runs if it.cause is ScheduleRunCause.TRIGGER]
            by_time = [it for it in view.last_runs if it.cause is ScheduleRunCause.TIME]
            if len(triggered) != 1 or len(by_time) < _RUNS:
                raise ScenarioError("record each run", f"{len(triggered)}, {len(by_time)}")
            self._answered(f"one by a trigger, at least {_RUNS} by time; it is paused")

    def _expect_started(self, run: ScheduleRun) -> None:
        if run.state not in {ScheduleRunState.RUNNING, ScheduleRunState.DONE}:
            raise ScenarioError("start a report", f"it is {run.state}: {run.error}")

    async def _check_report(self, process_id: str) -> None:
        """Check that a report is written and saved."""
        task_id = (await self._client.trace(process_id)).tasks[0].task_id
        await self._client.await_task(process_id, task_id=task_id)
        process = (await self._client.get(process_id)).process
        if process.status is not ProcessStatus.FINISHED:
            raise ScenarioError("write a report", f"{process_id} is {process.status}")
        self._answered(f"{process.result['report']} reported")

    @contextlib.contextmanager
    def _step(self, verb: str, what: str) -> Iterator[None]:
        self._console.print(
            Text.assemble((f"{verb:>7} ", "bold cyan"), self._schedule_id, (f"  {what}", "dim"))
        )
        with explaining(f"{verb} {self._schedule_id}"):
            yield

    def _answered(self, answer: str) -> None:
        self._console.print(Text.assemble(("      ✓ ", "green"), answer))


def _local_time(run: NextRun) -> str:
    """Return the time of day of a run in the time zone of the schedule."""
    return f"{run.instant.astimezone(ZoneInfo(TIME_ZONE)):%H:%M}"
