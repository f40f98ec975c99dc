"""The scan of schedules: what it runs together, when it wakes, and how it treats errors."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from progressor import errors
from progressor.domain.processes.process import SLOT_COUNT, process_key
from progressor.domain.schedules.schedule import (
    CronTimes,
    OverlapPolicy,
    ScheduleKey,
    ScheduleRunCause,
    Timing,
    Upcoming,
    schedule_key,
)
from progressor.runtime.schedules import scan as schedules
from progressor.runtime.schedules.runs import ScheduleRuns
from progressor.runtime.schedules.scan import ScheduleScan
from progressor.storage.schedules.runs import (
    FIRST,
    Deleted,
    DeletedTo,
    Done,
    DueSchedule,
    Item,
    QueuedRun,
    ScheduleTarget,
    StoredRuns,
)
from progressor.telemetry.metrics.registry import Metrics
from tests.support.runtime.harness import make_context

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
AWAY = errors.StorageUnavailableError("gone")


def target(name: str = "s", **fields: Any) -> ScheduleTarget:
    chosen: dict[str, Any] = {
        "key": schedule_key("clocks", name),
        "revision": 1,
        "target": "start",
        "target_id": "{instant}",
        "is_gated": False,
        **fields,
    }
    return ScheduleTarget(**chosen)


def due(name: str = "s", *, zone: str = "UTC", **fields: Any) -> DueSchedule:
    return DueSchedule(
        schedule=target(name, **fields),
        timing=Timing(times=CronTimes("* * * * *", zone)),
        upcoming=Upcoming(NOON, NOON),
        now=NOON,
    )


def queued(name: str, *, is_ready: bool) -> QueuedRun:
    return QueuedRun(
        schedule=target(name),
        upcoming=Upcoming(NOON, NOON),
        cause=ScheduleRunCause.TIME,
        policy=OverlapPolicy.QUEUE_ONE,
        is_ready=is_ready,
    )


class ScriptedRuns:
    """Gives what it was told to, and notes what is asked."""

    def __init__(self) -> None:
        self.due: list[Sequence[DueSchedule] | Exception] = []
        self.queued: list[QueuedRun] = []
        self.looked_after: list[ScheduleKey] = []
        self.forgotten: list[int] = []
        self.windows: dict[int, int] = {}
        self.seconds: float | None = None
        self.asked = asyncio.Event()

    async def claim_due(self, *, limit: int, lease: dt.timedelta) -> Sequence[DueSchedule]:
        del limit, lease
        given = self.due.pop(0) if self.due else ()
        if isinstance(given, Exception):
            raise given
        return given

    async def seconds_until_due(self) -> float | None:
        self.asked.set()
        return self.seconds

    async def find_queued(self, *, after: ScheduleKey, limit: int) -> Sequence[QueuedRun]:
        self.looked_after.append(after)
        return self.queued[:limit]

    async def delete_old(
        self, slot: int, at: DeletedTo, *, kept: int, age: dt.timedelta, limit: int
    ) -> Deleted:
        assert (kept, age, limit) == (schedules.KEPT, schedules.KEPT_FOR, schedules.WINDOW)
        self.forgotten.append(slot)
        window = int(at.schedule_id or "0") + 1
        left = window < self.windows.get(slot, 1)
        return Deleted(1, DeletedTo("clocks", str(window)) if left else None)


class ScriptedLaunches:
    """Runs, unless a batch is refused."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.refuse: Callable[[list[str]], Exception | None] = lambda _: None

    async def run(self, items: Sequence[Item]) -> tuple[Done, ...]:
        names = [item.schedule.key.schedule_id for item in items]
        self.batches.append(names)
        if error := self.refuse(names):
            raise error
        return ()


@dataclasses.dataclass
class Harness:
    runs: ScriptedRuns
    schedule_runs: ScriptedLaunches
    metrics: Metrics
    scan: ScheduleScan


@pytest.fixture
def harness() -> Harness:
    runs, schedule_runs, metrics = ScriptedRuns(), ScriptedLaunches(), Metrics()
    scan = ScheduleScan(
        runs=cast("StoredRuns", runs),
        schedule_runs=cast("ScheduleRuns", schedule_runs),
        interval=dt.timedelta(hours=1),
        lease=SECOND,
        context=make_context(metrics=metrics),
    )
    return Harness(runs, schedule_runs, metrics, scan)


async def test_schedules_that_start_the_same_kind_run_together(harness: Harness) -> None:
    harness.runs.due = [
        [
            due("a"),
            due("b", target="call", target_id="p"),
            due("c"),
            due("d", target="job"),
            due("e", is_gated=True),
            due("f", target="notify", target_id="p", is_gated=True),
        ]
    ]

    assert await harness.scan.run_due() == 6
    assert harness.schedule_runs.batches == [["a", "c"], ["b"], ["d"], ["e"], ["f"]]


def test_what_is_called_has_its_id_and_what_is_started_one_for_each_instant() -> None:
    call = target(target="call", target_id="order-1")

    assert call.process_at(NOON) == process_key("clocks", "order-1")
    assert target().process_at(NOON) == process_key("clocks", "2026-01-01T12:00:00Z")


async def test_a_zone_that_this_replica_does_not_know_stops_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.runs.due = [[due("a", zone="Moon/Base"), due("b")]]

    await harness.scan.run_due()

    assert harness.schedule_runs.batches == [["b"]]
    assert [record.message for record in caplog.records] == ["schedule not run"]


async def test_a_batch_that_is_refused_is_run_one_by_one(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.runs.due = [[due("a"), due("b"), due("c")]]
    harness.schedule_runs.refuse = lambda names: (
        errors.StorageRefusedError("a value") if "b" in names else None
    )

    await harness.scan.run_due()

    assert harness.schedule_runs.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [record.message for record in caplog.records] == ["schedule not run"]
    assert harness.metrics.scans_failed.value(("schedules",)) == 1


async def test_a_locked_schedule_is_skipped(harness: Harness) -> None:
    harness.runs.due = [[due("a"), due("b")]]
    harness.schedule_runs.refuse = lambda names: (
        errors.StorageLockedError("b") if "b" in names else None
    )

    await harness.scan.run_due()

    assert harness.schedule_runs.batches == [["a", "b"], ["a"], ["b"]]


async def test_a_rolled_back_run_is_retried_at_once_a_few_times(
    harness: Harness,
) -> None:
    harness.runs.due = [[due("a")]]
    left = [errors.StorageConflictError("deadlock")]
    harness.schedule_runs.refuse = lambda _: left.pop() if left else None

    await harness.scan.run_due()
    assert harness.schedule_runs.batches == [["a"], ["a"]]

    harness.runs.due = [[due("a"), due("b")]]
    harness.schedule_runs.batches.clear()
    harness.schedule_runs.refuse = lambda _: errors.StorageConflictError("deadlock")
    await harness.scan.run_due()
    assert harness.schedule_runs.batches == [["a", "b"]] * 3 + [["a"]] * 3 + [["b"]] * 3


async def test_what_is_ready_in_the_queue_is_started_and_the_next_round_goes_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "QUEUED_MAX", 2)
    harness.runs.queued = [queued("a", is_ready=True), queued("b", is_ready=False)]

    await harness.scan.scan()
    await harness.scan.scan()
    harness.runs.queued = []
    await harness.scan.scan()
    await harness.scan.scan()

    b = schedule_key("clocks", "b")
    assert harness.schedule_runs.batches == [["a"], ["a"]]
    assert harness.runs.looked_after == [FIRST, b, b, FIRST]


async def test_old_runs_are_deleted_slot_by_slot(harness: Harness) -> None:
    for _ in range(SLOT_COUNT // schedules.SLOTS_PER_ROUND + 1):
        await harness.scan.forget()

    assert harness.runs.forgotten[:SLOT_COUNT] == list(range(SLOT_COUNT))
    assert harness.runs.forgotten[SLOT_COUNT] == 0


async def test_a_slot_with_many_old_runs_is_gone_on_with_in_the_next_round(
    harness: Harness,
) -> None:
    harness.runs.windows[1] = schedules.WINDOWS_PER_ROUND + 10

    await harness.scan.forget()
    first = harness.runs.forgotten[:]
    await harness.scan.forget()

    assert first == [0, *[1] * (schedules.WINDOWS_PER_ROUND - 1)]
    second = harness.runs.forgotten[len(first) :]
    assert second == [*[1] * 11, *range(2, 1 + schedules.SLOTS_PER_ROUND)]


@contextlib.asynccontextmanager
async def running(scan: ScheduleScan) -> Any:
    task = asyncio.create_task(scan.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what turns it has no event
            await asyncio.sleep(0)


async def test_a_full_batch_is_followed_by_another_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "BATCH_MAX", 2)
    harness.runs.due = [[due("a"), due("b")], [due("c")]]

    async with running(harness.scan):
        await harness.runs.asked.wait()

    assert harness.schedule_runs.batches == [["a", "b"], ["c"]]


async def test_it_wakes_for_a_change(harness: Harness) -> None:
    harness.runs.seconds = 3600.0
    async with running(harness.scan):
        await harness.runs.asked.wait()
        harness.runs.due = [[due("a")]]
        await asyncio.sleep(0)
        harness.scan.changed.set()
        await until(lambda: bool(harness.schedule_runs.batches))


@pytest.mark.parametrize("error", [AWAY, errors.StorageRefusedError("a bug")])
async def test_an_error_is_counted_and_the_loop_goes_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(schedules, "_BACKOFF_SECONDS", 0.001)
    harness.runs.due = [error, [due("a")]]

    async with running(harness.scan):
        await until(lambda: bool(harness.schedule_runs.batches))

    assert harness.metrics.scans_failed.value(("schedules",)) == 1
