"""Schedules: what precedes a run, what a trigger finds, what is reported, and what is run when."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from progressor import errors, job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.process import SLOT_COUNT, ProcessKey, process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    CronTimes,
    JobTarget,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleRunCause,
    ScheduleRunState,
    ScheduleSpec,
    StartTarget,
    Target,
    Timing,
    Upcoming,
    schedule_key,
)
from progressor.runtime import schedules
from progressor.runtime.core.observer import Observers
from progressor.runtime.schedules import ATTEMPTS_MAX, ScheduleRuns, ScheduleScan
from progressor.storage.rows.effects import NO_EFFECTS, Effects
from progressor.storage.schedules.runs import (
    FIRST,
    Deleted,
    DeletedTo,
    Done,
    DueSchedule,
    Item,
    QueuedRun,
    ScheduleTarget,
    StartedWork,
    schedule_target,
)
from progressor.telemetry import names
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.traces.tracing import SILENT, Tracing
from tests.support.runtime.harness import make_context, make_dispatcher, running
from tests.support.runtime.virtual_time import settled
from tests.support.telemetry.spans import (
    NOT_TRACED,
    TRACED,
    Spans,
    attributes_of,
    id_of,
    is_error,
    parent_of,
)

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
KEY = schedule_key("clocks", "s")
PROCESS = process_key("clocks", "p")


def a_schedule(target: Target | None = None) -> Schedule:
    timing = Timing(times=CronTimes("* * * * *", "UTC"), overlap_policy=OverlapPolicy.ALLOW)
    return Schedule(
        key=KEY,
        spec=ScheduleSpec(timing=timing, target=target or StartTarget()),
        paused=False, note="", revision=3, created_at=NOON, updated_at=NOON, upcoming=None,
        started_count=0, skipped_count=0, missed_count=0, refused_count=0,
    )  # fmt: skip


def an_item(policy: OverlapPolicy = OverlapPolicy.CANCEL_PREVIOUS) -> Item:
    return Item(
        schedule=schedule_target(a_schedule()),
        what=Upcoming(NOON, NOON),
        cause=ScheduleRunCause.TIME,
        policy=policy,
        due=Upcoming(NOON, NOON),
    )


RUN = ScheduleRun(
    instant=NOON,
    cause=ScheduleRunCause.TRIGGER,
    state=ScheduleRunState.RUNNING,
    due_at=NOON,
    recorded_at=NOON,
)


class Scene:
    """Everything that schedule runs call, in one; records its calls."""

    def __init__(self, tracing: Tracing = SILENT) -> None:
        self.started: list[StartedWork] = []
        self.ended: list[str] = []
        self.marked: list[dt.datetime] = []
        self.fails: Exception | None = None
        self.has_job = False
        self.verdicts: list[str] = []
        self.ran: list[Item] = []
        self.refusal: Exception | None = None
        self.known: ScheduleRun | None = None
        self.found: list[ScheduleRun | None] = []
        self.metrics = Metrics()
        self.observers = Observers()
        self.schedule_runs = ScheduleRuns(
            runs=cast("Any", self),
            schedules=cast("Any", self),
            requests=cast("Any", self),
            jobs=cast("Any", Jobs(self)),
            effects=make_dispatcher(),
            context=make_context(observers=self.observers, metrics=self.metrics, tracing=tracing),
        )

    async def running(self, key: ScheduleKey) -> Sequence[StartedWork]:
        assert key == KEY
        return self.started

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        if self.fails:
            raise self.fails
        self.ended.append(f"task {task} of {key.process_id}")
        return 1

    async def halt(self, key: ProcessKey, detail: str) -> None:
        assert detail == "SCHEDULE_CANCELLED"
        if self.fails:
            raise self.fails
        self.ended.append(f"process {key.process_id}")

    async def mark_cancelled(self, key: ScheduleKey, instant: dt.datetime) -> None:
        assert key == KEY
        self.marked.append(instant)

    async def run(self, items: Sequence[Item]) -> tuple[tuple[Done, ...], Effects]:
        self.ran.extend(items)
        if self.refusal:
            raise self.refusal
        verdict = self.verdicts.pop(0) if self.verdicts else "started"
        done = tuple(
            Done(
                item=item,
                verdict=verdict,
                recorded_at=NOON + dt.timedelta(milliseconds=7),
                task_id=1,
                reason="PROCESS_FAILED" if verdict == "refused" else None,
            )
            for item in items
        )
        return done, NO_EFFECTS

    async def get(self, key: ScheduleKey) -> Schedule:
        assert key == KEY
        return a_schedule()

    async def now(self) -> dt.datetime:
        return NOON

    async def by_key(self, key: ScheduleKey, idempotency_key: str) -> ScheduleRun | None:
        assert (key, idempotency_key) == (KEY, "k")
        return self.known

    async def at(self, key: ScheduleKey, instant: dt.datetime) -> ScheduleRun | None:
        assert (key, instant) == (KEY, NOON)
        return self.found.pop(0) if self.found else RUN

    async def last(self, key: ScheduleKey, *, limit: int) -> Sequence[ScheduleRun]:
        assert key == KEY
        return (RUN,) * limit


@dataclasses.dataclass
class Jobs:
    scene: Scene

    async def cancel(self, key: ProcessKey, reason: str) -> None:
        assert reason == "SCHEDULE_CANCELLED"
        if not self.scene.has_job:
            raise job_errors.JobNotFoundError(key.namespace, key.process_id)
        if self.scene.fails:
            raise self.scene.fails
        self.scene.ended.append(f"job {key.process_id}")


@pytest.fixture
def scene() -> Scene:
    return Scene()


def started(task_type: TaskType) -> StartedWork:
    return StartedWork(instant=NOON, process=PROCESS, task_type=task_type, task_id=7)


@pytest.mark.parametrize(
    ("task_type", "has_job", "ended"),
    [
        (TaskType.INIT, False, "process p"),
        (TaskType.INIT, True, "job p"),
        (TaskType.CALL, False, "task 7 of p"),
        (TaskType.NOTIFY, False, "task 7 of p"),
    ],
)
async def test_what_runs_is_ended_before_the_next_one_is_run(
    scene: Scene, task_type: TaskType, has_job: bool, ended: str
) -> None:
    scene.started, scene.has_job = [started(task_type)], has_job

    await scene.schedule_runs.run([an_item()])

    assert (scene.ended, scene.marked) == ([ended], [NOON])
    assert len(scene.ran) == 1


@pytest.mark.parametrize(
    ("task_type", "error"),
    [
        (TaskType.CALL, errors.TaskIsRunningError("p", 7)),
        (TaskType.CALL, errors.TaskHasEndedError("p", 7)),
        (TaskType.NOTIFY, errors.TaskNotFoundError("p", 7)),
        (TaskType.NOTIFY, errors.ProcessNotFoundError("clocks", "p")),
        (TaskType.INIT, errors.ProcessNotFoundError("clocks", "p")),
        (TaskType.INIT, errors.ProcessFinishedError("p")),
    ],
)
async def test_what_ends_by_itself_is_not_marked_as_cancelled(
    scene: Scene, task_type: TaskType, error: Exception
) -> None:
    scene.started, scene.fails = [started(task_type)], error

    await scene.schedule_runs.run([an_item()])

    assert scene.marked == []
    assert len(scene.ran) == 1


async def test_a_trigger_of_a_key_that_came_before_runs_nothing(scene: Scene) -> None:
    scene.known = RUN

    run = await scene.schedule_runs.trigger(KEY, policy=OverlapPolicy.SKIP, idempotency_key="k")

    assert run is RUN
    assert scene.ran == []


async def test_a_trigger_is_tried_again_where_the_schedule_has_changed(scene: Scene) -> None:
    scene.verdicts, scene.found = ["changed", "known"], [None]

    run = await scene.schedule_runs.trigger(KEY, policy=OverlapPolicy.SKIP, idempotency_key=None)

    assert run is RUN
    assert len(scene.ran) == 4


async def test_a_trigger_gives_up_where_it_changes_all_the_time(scene: Scene) -> None:
    scene.verdicts = ["changed"] * ATTEMPTS_MAX

    with pytest.raises(errors.StorageConflictError):
        await scene.schedule_runs.trigger(KEY, policy=None, idempotency_key=None)


async def test_the_last_runs_are_read(scene: Scene) -> None:
    assert await scene.schedule_runs.last(KEY, limit=2) == (RUN, RUN)


@pytest.mark.parametrize("verdict", ["started", "queued", "skipped", "refused", "missed"])
async def test_what_became_of_a_run_is_counted(
    scene: Scene, caplog: pytest.LogCaptureFixture, verdict: str
) -> None:
    scene.verdicts = [verdict]

    await scene.schedule_runs.run([an_item(OverlapPolicy.SKIP)])

    assert scene.metrics.schedule_runs.value(("clocks", verdict)) == 1
    is_told = verdict in {"refused", "missed"}
    assert [it.message for it in caplog.records] == ["schedule run refused"] * is_told
    lateness = scene.metrics.schedule_lateness.snapshot().values
    assert (("clocks",) in lateness) is (verdict == "started")


TRIGGERED = "progressor.v1.ScheduleService"
LATE_MS = 7.0


@pytest.mark.parametrize(
    ("verdict", "error"),
    [
        ("started", None),
        ("queued", None),
        ("skipped", None),
        ("refused", "PROCESS_FAILED"),
        ("missed", "MISSED"),
    ],
)
async def test_the_span_of_a_run_says_what_became_of_it(verdict: str, error: str | None) -> None:
    spans = Spans(chance=0.1)
    scene = Scene(spans.tracing)
    scene.verdicts = [verdict]

    await scene.schedule_runs.run([an_item(OverlapPolicy.SKIP)])

    span = spans.one(names.SCHEDULE_RUN)
    assert attributes_of(span) == {
        names.NAMESPACE: "clocks",
        names.PROCESS_ID: "s/2026-01-01T12:00:00Z",
        names.SCHEDULE_ID: "s",
        names.INSTANT: "2026-01-01T12:00:00+00:00",
        names.CAUSE: "time",
        names.VERDICT: verdict,
        names.LATENESS: LATE_MS,
        names.TASK_ID: 1,
        "db.system.name": "postgresql",
        "db.stored_procedure.name": "run_schedules",
    } | ({} if error is None else {names.ERROR_TYPE: error})
    assert is_error(span) is (error is not None)
    assert parent_of(span) is None


async def test_what_a_run_starts_goes_on_with_its_span() -> None:
    spans = Spans(chance=0.1)
    scene = Scene(spans.tracing)

    await scene.schedule_runs.run([an_item(OverlapPolicy.SKIP)])

    [item] = scene.ran
    assert item.trace_context["traceparent"].split("-")[2] == id_of(spans.one(names.SCHEDULE_RUN))


async def test_the_ratio_decides_whether_a_run_is_traced() -> None:
    spans = Spans(ratio=0.5, chance=0.5)

    await Scene(spans.tracing).schedule_runs.run([an_item(OverlapPolicy.SKIP)])

    assert spans.ended() == ()


@pytest.mark.parametrize(("caller", "traced"), [(TRACED, True), (NOT_TRACED, False)])
async def test_a_trigger_is_part_of_the_story_of_its_request(
    caller: Mapping[str, str], traced: bool
) -> None:
    spans = Spans(ratio=1.0)

    with spans.tracing.request(TRIGGERED, "TriggerSchedule", caller):
        await Scene(spans.tracing).schedule_runs.trigger(KEY, policy=None, idempotency_key=None)

    if not traced:
        assert spans.ended() == ()
        return
    ran, request = spans.one(names.SCHEDULE_RUN), spans.one(f"{TRIGGERED}/TriggerSchedule")
    assert parent_of(ran) == id_of(request)
    assert attributes_of(ran)[names.CAUSE] == "trigger"
    assert names.LATENESS not in attributes_of(ran)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (errors.StorageUnavailableError("away"), ["STORAGE_UNAVAILABLE"]),
        (errors.StorageConflictError("undone"), []),
        (errors.StorageLockedError("kept"), []),
    ],
)
async def test_a_run_that_may_have_been_done_is_told_and_none_that_was_not(
    refusal: errors.StorageError, told: Sequence[str]
) -> None:
    spans = Spans()
    scene = Scene(spans.tracing)
    scene.refusal = refusal

    with pytest.raises(type(refusal)):
        await scene.schedule_runs.run([an_item(OverlapPolicy.SKIP)])

    assert [attributes_of(span)[names.ERROR_TYPE] for span in spans.ended()] == told


CONSTRAINTS = Constraints(gates={"g": 1})


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (StartTarget(template="a{instant}"), ("start", "a{instant}", "start")),
        (StartTarget(constraints=CONSTRAINTS), ("start", "{schedule_id}/{instant}", "gated_start")),
        (CallTarget(task_type=TaskType.CALL, process_id="p"), ("call", "p", "request")),
        (
            CallTarget(task_type=TaskType.NOTIFY, process_id="p", constraints=CONSTRAINTS),
            ("notify", "p", "gated_request"),
        ),
        (JobTarget(nodes=(), template="j{instant}"), ("job", "j{instant}", "job")),
    ],
)
def test_a_schedule_is_run_as_its_columns_say(
    target: Target, expected: tuple[str, str, str]
) -> None:
    found: ScheduleTarget = schedule_target(a_schedule(target))

    assert (found.target, found.target_id, found.kind) == expected


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
        overlap_policy=OverlapPolicy.QUEUE_ONE,
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

    async def claim_due(self, *, limit: int, lease: dt.timedelta) -> Sequence[DueSchedule]:
        del limit, lease
        given = self.due.pop(0) if self.due else ()
        if isinstance(given, Exception):
            raise given
        return given

    async def seconds_until_due(self) -> float | None:
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


class Scanning:
    """A scan over scripted runs, which are started unless a batch is refused."""

    def __init__(self) -> None:
        self.runs, self.metrics = ScriptedRuns(), Metrics()
        self.changed = asyncio.Event()
        self.batches: list[list[str]] = []
        self.refuse: Callable[[list[str]], Exception | None] = lambda _: None
        self.scan = ScheduleScan(
            schedule_runs=cast("Any", self), context=make_context(metrics=self.metrics)
        )

    @property
    def schedules(self) -> "Scanning":
        return self

    async def run(self, items: Sequence[Item]) -> tuple[Done, ...]:
        names = [item.schedule.key.schedule_id for item in items]
        self.batches.append(names)
        if error := self.refuse(names):
            raise error
        return ()


@pytest.fixture
def harness() -> Scanning:
    return Scanning()


async def test_schedules_that_start_the_same_kind_run_together(harness: Scanning) -> None:
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
    assert harness.batches == [["a", "c"], ["b"], ["d"], ["e"], ["f"]]


def test_what_is_called_has_its_id_and_what_is_started_one_for_each_instant() -> None:
    call = target(target="call", target_id="order-1")

    assert call.process_at(NOON) == process_key("clocks", "order-1")
    assert target().process_at(NOON) == process_key("clocks", "2026-01-01T12:00:00Z")


async def test_a_zone_that_this_replica_does_not_know_stops_no_other(
    harness: Scanning, caplog: pytest.LogCaptureFixture
) -> None:
    harness.runs.due = [[due("a", zone="Moon/Base"), due("b")]]

    await harness.scan.run_due()

    assert harness.batches == [["b"]]
    assert [record.message for record in caplog.records] == ["schedule not run"]


async def test_a_batch_that_is_refused_is_run_one_by_one(
    harness: Scanning, caplog: pytest.LogCaptureFixture
) -> None:
    harness.runs.due = [[due("a"), due("b"), due("c")]]
    harness.refuse = lambda names: errors.StorageRefusedError("a value") if "b" in names else None

    await harness.scan.run_due()

    assert harness.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [record.message for record in caplog.records] == ["schedule not run"]
    assert harness.metrics.scans_failed.value(("schedules",)) == 1


async def test_a_locked_schedule_is_skipped(harness: Scanning) -> None:
    harness.runs.due = [[due("a"), due("b")]]
    harness.refuse = lambda names: errors.StorageLockedError("b") if "b" in names else None

    await harness.scan.run_due()

    assert harness.batches == [["a", "b"], ["a"], ["b"]]


async def test_a_rolled_back_run_is_retried_at_once_a_few_times(
    harness: Scanning,
) -> None:
    harness.runs.due = [[due("a")]]
    left = [errors.StorageConflictError("deadlock")]
    harness.refuse = lambda _: left.pop() if left else None

    await harness.scan.run_due()
    assert harness.batches == [["a"], ["a"]]

    harness.runs.due = [[due("a"), due("b")]]
    harness.batches.clear()
    harness.refuse = lambda _: errors.StorageConflictError("deadlock")
    await harness.scan.run_due()
    assert harness.batches == [["a", "b"]] * 3 + [["a"]] * 3 + [["b"]] * 3


async def test_what_is_ready_in_the_queue_is_started_and_the_next_round_goes_on(
    harness: Scanning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "QUEUED_MAX", 2)
    harness.runs.queued = [queued("a", is_ready=True), queued("b", is_ready=False)]

    await harness.scan.scan()
    await harness.scan.scan()
    harness.runs.queued = []
    await harness.scan.scan()
    await harness.scan.scan()

    b = schedule_key("clocks", "b")
    assert harness.batches == [["a"], ["a"]]
    assert harness.runs.looked_after == [FIRST, b, b, FIRST]


async def test_old_runs_are_deleted_slot_by_slot(harness: Scanning) -> None:
    for _ in range(SLOT_COUNT // schedules.SLOTS_PER_ROUND + 1):
        await harness.scan.forget()

    assert harness.runs.forgotten[:SLOT_COUNT] == list(range(SLOT_COUNT))
    assert harness.runs.forgotten[SLOT_COUNT] == 0


async def test_a_slot_with_many_old_runs_is_gone_on_with_in_the_next_round(
    harness: Scanning,
) -> None:
    harness.runs.windows[1] = schedules.WINDOWS_PER_ROUND + 10

    await harness.scan.forget()
    first = harness.runs.forgotten[:]
    await harness.scan.forget()

    assert first == [0, *[1] * (schedules.WINDOWS_PER_ROUND - 1)]
    second = harness.runs.forgotten[len(first) :]
    assert second == [*[1] * 11, *range(2, 1 + schedules.SLOTS_PER_ROUND)]


async def test_a_full_batch_is_followed_by_another_at_once() -> None:
    harness = Scanning()
    harness.runs.due = [[due(f"s{n}") for n in range(schedules.BATCH_MAX)], [due("last")]]

    async with running(harness.scan.run):
        pass

    assert [len(batch) for batch in harness.batches] == [schedules.BATCH_MAX, 1]


async def test_it_wakes_for_a_change() -> None:
    harness = Scanning()
    harness.runs.seconds = 3600.0
    async with running(harness.scan.run):
        harness.runs.due = [[due("a")]]
        harness.changed.set()
        await settled()

    assert harness.batches == [["a"]]


@pytest.mark.parametrize("error", [AWAY, errors.StorageRefusedError("a bug")])
async def test_an_error_is_counted_and_the_loop_goes_on(error: Exception) -> None:
    harness = Scanning()
    harness.runs.due = [error, [due("a")]]
    async with running(harness.scan.run):
        await asyncio.sleep(0.5)

    assert harness.batches == [["a"]]
    assert harness.metrics.scans_failed.value(("schedules",)) == 1
