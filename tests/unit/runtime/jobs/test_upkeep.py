"""Job upkeep: reported jobs are handled at once, others by the scan; recovery is counted."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

from progressor import errors
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.runtime.core.observer import Observers
from progressor.runtime.effects.upkeep_queue import UpkeepQueue
from progressor.runtime.jobs.upkeep import OVERDUE, JobScan
from progressor.settings.sections import Scanner
from progressor.storage.jobs.jobs import Found, Maintained, RunningJobs
from progressor.telemetry.metrics.registry import Metrics
from tests.support.runtime.context import make_context
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.telemetry.measured import counted

ONE, OTHER = process_key("orders", "one"), process_key("orders", "other")


@dataclasses.dataclass
class ScriptedJobs:
    """Storage's jobs, by what they are to answer."""

    maintained: list[ProcessKey] = dataclasses.field(default_factory=list)
    answers: list[Maintained | errors.StorageError] = dataclasses.field(default_factory=list)
    upkeep_due: tuple[ProcessKey, ...] = ()
    overdue: tuple[ProcessKey, ...] = ()
    found: tuple[Found, ...] | None = None
    running: tuple[RunningJobs, ...] = ()
    orphans_asked: int = 0

    async def maintain(self, key: ProcessKey) -> Maintained:
        self.maintained.append(key)
        answer = self.answers.pop(0) if self.answers else Maintained()
        if isinstance(answer, errors.StorageError):
            raise answer
        return answer

    async def find_upkeep_due(self, *, age: dt.timedelta, limit: int) -> tuple[ProcessKey, ...]:
        assert (age, limit > 0) == (OVERDUE, True)
        return self.upkeep_due

    async def fail_overdue(self, *, limit: int) -> tuple[ProcessKey, ...]:
        assert limit > 0
        return self.overdue

    async def stop_orphans(self) -> int:
        self.orphans_asked += 1
        return 0

    async def recover(self) -> tuple[Found, ...] | None:
        return self.found

    async def count_running(self) -> tuple[RunningJobs, ...]:
        return self.running


class Harness:
    """A scan on scripted jobs."""

    def __init__(self, **answers: Any) -> None:
        self.jobs = ScriptedJobs(**answers)
        self.metrics, self.observers = Metrics(), Observers()
        self.upkeep_queue = UpkeepQueue()
        self.scan = JobScan(
            jobs=self.jobs,
            control=self.jobs,
            upkeep_queue=self.upkeep_queue,
            scanner=Scanner(),
            context=make_context(observers=self.observers, metrics=self.metrics),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tend what is heard of."""
        task = asyncio.create_task(self.scan.run(), name="jobs")
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@in_virtual_time
async def test_a_reported_job_is_handled_at_once() -> None:
    harness = Harness(answers=[Maintained(started=2), Maintained(stopped=3)])
    async with harness.running():
        harness.upkeep_queue.add(ONE, OTHER)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert harness.jobs.maintained == [ONE, OTHER]

    assert counted(harness.metrics.upkeep_nodes) == {
        ("orders", "started"): 2,
        ("orders", "stopped"): 3,
    }


@in_virtual_time
async def test_a_locked_or_incomplete_job_is_handled_again() -> None:
    locked = errors.StorageLockedError("kept")
    harness = Harness(answers=[locked, Maintained(is_whole=False), Maintained()])
    async with harness.running():
        harness.upkeep_queue.add(ONE)
        await asyncio.sleep(1)

    assert harness.jobs.maintained == [ONE] * 3


@in_virtual_time
async def test_one_that_is_locked_keeps_no_other_waiting() -> None:
    harness = Harness(answers=[errors.StorageLockedError("kept"), Maintained()])
    async with harness.running():
        harness.upkeep_queue.add(ONE, OTHER)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert harness.jobs.maintained == [ONE, OTHER]


@in_virtual_time
async def test_the_scan_picks_up_jobs_that_nobody_handled() -> None:
    harness = Harness(upkeep_due=(ONE,))
    async with harness.running():
        await harness.scan.scan()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert harness.jobs.maintained == [ONE]

    assert harness.jobs.orphans_asked == 1


@in_virtual_time
async def test_what_fails_at_its_deadline_is_counted() -> None:
    harness = Harness(overdue=(ONE, OTHER))

    await harness.scan.scan()

    assert counted(harness.metrics.jobs_overdue) == {("orders",): 2}
    assert counted(harness.metrics.jobs_ended) == {("orders", "failed"): 2}
    assert harness.observers.counts["job_overdue"] == 2


@in_virtual_time
async def test_what_recovery_finds_is_counted() -> None:
    harness = Harness(found=(Found("join", ONE, None), Found("node", OTHER, 3)))

    await harness.scan.scan()

    assert counted(harness.metrics.jobs_recovered) == {("orders", "join"): 1, ("orders", "node"): 1}
    assert harness.observers.counts["job_recovered"] == 2


@in_virtual_time
async def test_running_jobs_are_reported_until_they_have_ended() -> None:
    harness = Harness(running=(RunningJobs("orders", 2, 3, 0, 5, 1, 4),))
    harness.scan.observed()
    await harness.scan.count()
    told = counted(harness.metrics.jobs_running), counted(harness.metrics.job_nodes)
    harness.jobs.running = ()

    await harness.scan.count()

    assert told == (
        {("orders",): 2},
        {
            ("orders", "waiting"): 3,
            ("orders", "ready"): 0,
            ("orders", "running"): 5,
            ("orders", "failed"): 1,
            ("orders", "skipped"): 4,
        },
    )
    assert counted(harness.metrics.jobs_running) == counted(harness.metrics.job_nodes) == {}
