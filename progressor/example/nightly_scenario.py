"""A nightly schedule: what it will do, one firing by hand, and two by a clock that runs faster.

The example does not wait for the night: once the schedule is there, it is given instants of each
second.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.text import Text

from progressor.example.nightly import TIME_ZONE, Report, at_night, reports
from progressor.example.scenario import ScenarioError
from progressor.sdk import (
    Client,
    Every,
    Firing,
    FiringCause,
    FiringState,
    NextFiring,
    ProcessStatus,
    ProgressorError,
)

_PATIENCE_SECONDS = 30.0
_NIGHTS = 3
# In the night in which the clocks go forward, half past two comes when they say three.
_AT = frozenset({"02:30", "03:00"})
_FIRINGS = 2


class NightlyScenario:
    """One run, told as it happens; `run` makes the id of its schedule its own."""

    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console = console
        self._schedule_id = f"sales-{run}"
        self._written: asyncio.Queue[str] = asyncio.Queue()
        self.processor = reports(self._tell)

    async def play(self, client: Client) -> tuple[str, ...]:
        """Play it to its end, some seconds later; return the reports that it leaves behind.

        Args:
            client: Of the namespace of the reports.

        Raises:
            ScenarioError: It went another way; the message says where and how.
        """
        self._client = client
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._create()
                by_hand = await self._trigger()
                by_clock = await self._let_fire()
                await self._see_record()
        except TimeoutError as error:
            raise ScenarioError("have its reports written in time", self._schedule_id) from error
        return by_hand, *by_clock

    def _tell(self, process_id: str, what: str) -> None:
        """Hear of a report from its processor."""
        if what == "is written":
            self._written.put_nowait(process_id)

    async def _create(self) -> None:
        with self._step("create", "half past two in Berlin, each night"):
            spec = at_night(Report(subject="sales"))
            made = await self._client.schedules.create(self._schedule_id, spec, note="the example")
            view = await self._client.schedules.get(made.schedule_id, next_count=_NIGHTS)
            nights = [_on_the_wall(it) for it in view.next_firings]
            if len(nights) != _NIGHTS or not set(nights) <= _AT:
                raise ScenarioError("fire at half past two", str(nights))
            self._answered(f"the next {_NIGHTS} nights at {', '.join(nights)} there")

    async def _trigger(self) -> str:
        with self._step("trigger", "now, besides its own instants"):
            firing = await self._client.schedules.trigger(
                self._schedule_id, idempotency_key="by-hand"
            )
            # However often this is sent, there is one report.
            again = await self._client.schedules.trigger(
                self._schedule_id, idempotency_key="by-hand"
            )
            if again.process_id != firing.process_id:
                raise ScenarioError("fire once", f"{firing.process_id} and {again.process_id}")
            self._expect_started(firing)
            await self._see_report(await self._written.get())
            return firing.process_id

    async def _let_fire(self) -> tuple[str, ...]:
        with self._step("update", "each second, whatever the clock on the wall says"):
            view = await self._client.schedules.get(self._schedule_id)
            spec = dataclasses.replace(view.schedule.spec, times=Every(1))
            await self._client.schedules.update(
                self._schedule_id, spec, expected_revision=view.schedule.revision
            )
            written = [await self._written.get() for _ in range(_FIRINGS)]
            await self._client.schedules.pause(self._schedule_id, note="seen enough")
            for process_id in written:
                await self._see_report(process_id)
        return tuple(written)

    async def _see_record(self) -> None:
        with self._step("get", "what has become of its firings"):
            view = await self._client.schedules.get(self._schedule_id, last_count=100)
            if not view.schedule.paused or view.next_firings:
                raise ScenarioError("pause", f"{len(view.next_firings)} firings to come")
            by_hand = [it for it in view.last_firings if it.cause is FiringCause.TRIGGER]
            by_clock = [it for it in view.last_firings if it.cause is FiringCause.TIME]
            if len(by_hand) != 1 or len(by_clock) < _FIRINGS:
                raise ScenarioError("record each firing", f"{len(by_hand)}, {len(by_clock)}")
            self._answered(f"one by hand, {_FIRINGS} or more by the clock; and it is paused")

    def _expect_started(self, firing: Firing) -> None:
        if firing.state not in {FiringState.RUNNING, FiringState.DONE}:
            raise ScenarioError("start a report", f"it is {firing.state}: {firing.error}")

    async def _see_report(self, process_id: str) -> None:
        """See that a report is written, and saved a moment later."""
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
        try:
            yield
        except ScenarioError:
            raise
        except ProgressorError as error:
            why = f"{error} ({error.reason})"
            raise ScenarioError(f"{verb} {self._schedule_id}", why) from error

    def _answered(self, answer: str) -> None:
        self._console.print(Text.assemble(("      ✓ ", "green"), answer))


def _on_the_wall(firing: NextFiring) -> str:
    """Return what the clock says where the schedule is at home."""
    return f"{firing.instant.astimezone(ZoneInfo(TIME_ZONE)):%H:%M}"
