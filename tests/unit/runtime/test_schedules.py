"""Schedules: what precedes a run, what a trigger finds, what is reported, and what is run when."""

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from progressor import errors, job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.process import SLOT_COUNT, process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    CronTimes,
    JobTarget,
    OverlapPolicy,
    Schedule,
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
from progressor.runtime.jobs import JobControl
from progressor.runtime.requests import Requests
from progressor.runtime.schedules import ATTEMPTS_MAX, ScheduleRuns, ScheduleScan
from progressor.storage.postgres.rows.effects import NO_EFFECTS, Effects
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
    StoredRuns,
    schedule_target,
)
from progressor.storage.schedules.schedules import Schedules
from progressor.telemetry import names
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.traces.tracing import SILENT, Tracing
from tests.support.builders import maker
from tests.support.runtime.harness import make_context, make_dispatcher, running
from tests.support.runtime.stubs import stub
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


a_schedule = maker(
    Schedule, key=KEY, paused=False, note="", revision=3, created_at=NOON, updated_at=NOON,
    upcoming=None, started_count=0, skipped_count=0, missed_count=0, refused_count=0,
    spec=ScheduleSpec(timing=Timing(times=CronTimes("* * * * *", "UTC")), target=StartTarget()),
)  # fmt: skip
an_item = maker(
    Item,
    "policy",
    schedule=schedule_target(a_schedule()),
    what=Upcoming(NOON, NOON),
    cause=ScheduleRunCause.TIME,
    policy=OverlapPolicy.CANCEL_PREVIOUS,
    due=Upcoming(NOON, NOON),
)
RUN = ScheduleRun(
    instant=NOON, cause=ScheduleRunCause.TRIGGER, state=ScheduleRunState.RUNNING, due_at=NOON,
    recorded_at=NOON,
)  # fmt: skip


class Scene:
    """Runs of schedules, over stubs of what they call."""

    def __init__(self, tracing: Tracing = SILENT) -> None:
        self.verdicts: list[str] = []
        self.ran: list[Item] = []
        self.runs = stub(StoredRuns, running=(), now=NOON, by_key=None, at=RUN)
        self.runs.run.side_effect = self._run
        self.requests = stub(Requests, cancel=7)
        self.jobs = stub(JobControl, cancel=job_errors.JobNotFoundError("clocks", "p"))
        self.metrics = Metrics()
        self.schedule_runs = ScheduleRuns(
            runs=self.runs,
            schedules=stub(Schedules, get=a_schedule()),
            requests=self.requests,
            jobs=self.jobs,
            effects=make_dispatcher(),
            context=make_context(metrics=self.metrics, tracing=tracing),
        )

    def start(self, task_type: TaskType) -> None:
        """Have an earlier run start a task that is at work."""
        work = StartedWork(instant=NOON, process=PROCESS, task_type=task_type, task_id=7)
        self.runs.running.return_value = [work]

    def _run(self, items: Sequence[Item]) -> tuple[tuple[Done, ...], Effects]:
        self.ran.extend(items)
        verdict = self.verdicts.pop(0) if self.verdicts else "started"
        recorded_at = NOON + dt.timedelta(milliseconds=7)
        reason = "PROCESS_FAILED" if verdict == "refused" else None
        done = (
            Done(item=item, verdict=verdict, recorded_at=recorded_at, task_id=1, reason=reason)
            for item in items
        )
        return tuple(done), NO_EFFECTS


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    ("task_type", "has_job", "ended"),
    [
        (TaskType.INIT, False, "halt"),
        (TaskType.INIT, True, "job"),
        (TaskType.CALL, False, "task"),
        (TaskType.NOTIFY, False, "task"),
    ],
)
async def test_what_runs_is_ended_before_the_next_one_is_run(
    scene: Scene, task_type: TaskType, has_job: bool, ended: str
) -> None:
    scene.start(task_type)
    if has_job:
        scene.jobs.cancel.side_effect = None

    await scene.schedule_runs.run([an_item()])

    calls = {"halt": scene.requests.halt, "job": scene.jobs.cancel, "task": scene.requests.cancel}
    calls[ended].assert_awaited_once_with(PROCESS, 7 if ended == "task" else "SCHEDULE_CANCELLED")
    scene.runs.mark_cancelled.assert_awaited_once_with(KEY, NOON)
    assert len(scene.ran) == 1


@pytest.mark.parametrize(
    ("task_type", "error"),
    [
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
    scene.start(task_type)
    scene.requests.cancel.side_effect = scene.requests.halt.side_effect = error

    await scene.schedule_runs.run([an_item()])

    scene.runs.mark_cancelled.assert_not_awaited()
    assert len(scene.ran) == 1


async def test_a_trigger_of_a_key_that_came_before_runs_nothing(scene: Scene) -> None:
    scene.runs.by_key.return_value = RUN

    run = await scene.schedule_runs.trigger(KEY, policy=OverlapPolicy.SKIP, idempotency_key="k")

    assert run is RUN
    assert scene.ran == []


async def test_a_trigger_is_tried_again_where_the_schedule_has_changed(scene: Scene) -> None:
    scene.verdicts = ["changed", "known"]
    scene.runs.at.side_effect = [None, RUN]

    run = await scene.schedule_runs.trigger(KEY, policy=OverlapPolicy.SKIP, idempotency_key=None)

    assert run is RUN
    assert len(scene.ran) == 4


async def test_a_trigger_gives_up_where_it_changes_all_the_time(scene: Scene) -> None:
    scene.verdicts = ["changed"] * ATTEMPTS_MAX

    with pytest.raises(errors.StorageConflictError):
        await scene.schedule_runs.trigger(KEY, policy=None, idempotency_key=None)


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
async def test_what_became_of_a_run_is_counted_and_is_in_its_span(
    caplog: pytest.LogCaptureFixture, verdict: str, error: str | None
) -> None:
    spans = Spans(chance=0.1)
    scene = Scene(spans.tracing)
    scene.verdicts = [verdict]

    await scene.schedule_runs.run([an_item(OverlapPolicy.SKIP)])

    assert scene.metrics.schedule_runs.value(("clocks", verdict)) == 1
    assert [it.message for it in caplog.records] == ["schedule run refused"] * (error is not None)
    lateness = scene.metrics.schedule_lateness.snapshot().values
    assert (("clocks",) in lateness) is (verdict == "started")
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
    assert (is_error(span), parent_of(span)) == (error is not None, None)
    # What the run starts goes on with its span.
    [item] = scene.ran
    assert item.trace_context["traceparent"].split("-")[2] == id_of(span)


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
    scene.runs.run.side_effect = refusal

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
    timing = Timing(times=CronTimes("* * * * *", "UTC"))
    spec = ScheduleSpec(timing=timing, target=target)

    found: ScheduleTarget = schedule_target(a_schedule(spec=spec))

    assert (found.target, found.target_id, found.kind) == expected


def target(name: str = "s", **fields: Any) -> ScheduleTarget:
    defaults: dict[str, Any] = {
        "revision": 1, "target": "start", "target_id": "{instant}", "is_gated": False,
    }  # fmt: skip
    return ScheduleTarget(key=schedule_key("clocks", name), **defaults | fields)


def due(name: str = "s", *, zone: str = "UTC", **fields: Any) -> DueSchedule:
    timing = Timing(times=CronTimes("* * * * *", zone))
    upcoming = Upcoming(NOON, NOON)
    return DueSchedule(schedule=target(name, **fields), timing=timing, upcoming=upcoming, now=NOON)


def queued(name: str, *, is_ready: bool) -> QueuedRun:
    return QueuedRun(
        schedule=target(name), upcoming=Upcoming(NOON, NOON), cause=ScheduleRunCause.TIME,
        overlap_policy=OverlapPolicy.QUEUE_ONE, is_ready=is_ready,
    )  # fmt: skip


def _next(answers: list[Any]) -> Any:
    answer = answers.pop(0) if answers else ()
    if isinstance(answer, Exception):
        raise answer
    return answer


class Scanning:
    """A scan over scripted runs, which are started unless a batch is refused."""

    def __init__(self) -> None:
        self.metrics, self.changed = Metrics(), asyncio.Event()
        self.runs = stub(StoredRuns, seconds_until_due=None, find_queued=())
        self.due: list[Sequence[DueSchedule] | Exception] = []
        self.runs.claim_due.side_effect = lambda **_: _next(self.due)
        self.windows: dict[int, int] = {}
        self.runs.delete_old.side_effect = self._delete_old
        self.batches: list[list[str]] = []
        self.refuse: Callable[[list[str]], Exception | None] = lambda _: None
        self.scan = ScheduleScan(
            schedule_runs=cast("Any", self), context=make_context(metrics=self.metrics)
        )

    @property
    def forgotten(self) -> list[int]:
        return [call.args[0] for call in self.runs.delete_old.await_args_list]

    def _delete_old(self, slot: int, at: DeletedTo, **_: Any) -> Deleted:
        window = int(at.schedule_id or "0") + 1
        left = window < self.windows.get(slot, 1)
        return Deleted(1, DeletedTo("clocks", str(window)) if left else None)

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
    called: dict[str, Any] = {"target": "call", "target_id": "p"}
    gated: dict[str, Any] = {"is_gated": True}
    harness.due = [[
        due("a"), due("b", **called), due("c"), due("d", target="job"), due("e", **gated),
        due("f", **called | gated),
    ]]  # fmt: skip

    assert await harness.scan.run_due() == 6
    assert harness.batches == [["a", "c"], ["b"], ["d"], ["e"], ["f"]]


def test_what_is_called_has_its_id_and_what_is_started_one_for_each_instant() -> None:
    call = target(target="call", target_id="order-1")

    assert call.process_at(NOON) == process_key("clocks", "order-1")
    assert target().process_at(NOON) == process_key("clocks", "2026-01-01T12:00:00Z")


async def test_a_zone_that_this_replica_does_not_know_stops_no_other(
    harness: Scanning, caplog: pytest.LogCaptureFixture
) -> None:
    harness.due = [[due("a", zone="Moon/Base"), due("b")]]

    await harness.scan.run_due()

    assert harness.batches == [["b"]]
    assert [record.message for record in caplog.records] == ["schedule not run"]


async def test_a_batch_that_is_refused_is_run_one_by_one(
    harness: Scanning, caplog: pytest.LogCaptureFixture
) -> None:
    harness.due = [[due("a"), due("b"), due("c")]]
    harness.refuse = lambda names: errors.StorageRefusedError("a value") if "b" in names else None

    await harness.scan.run_due()

    assert harness.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [record.message for record in caplog.records] == ["schedule not run"]
    assert harness.metrics.scans_failed.value(("schedules",)) == 1


async def test_a_locked_schedule_is_skipped(harness: Scanning) -> None:
    harness.due = [[due("a"), due("b")]]
    harness.refuse = lambda names: errors.StorageLockedError("b") if "b" in names else None

    await harness.scan.run_due()

    assert harness.batches == [["a", "b"], ["a"], ["b"]]


async def test_a_rolled_back_run_is_retried_at_once_a_few_times(
    harness: Scanning,
) -> None:
    harness.due = [[due("a")]]
    left = [errors.StorageConflictError("deadlock")]
    harness.refuse = lambda _: left.pop() if left else None

    await harness.scan.run_due()
    assert harness.batches == [["a"], ["a"]]

    harness.due = [[due("a"), due("b")]]
    harness.batches.clear()
    harness.refuse = lambda _: errors.StorageConflictError("deadlock")
    await harness.scan.run_due()
    assert harness.batches == [["a", "b"]] * 3 + [["a"]] * 3 + [["b"]] * 3


async def test_what_is_ready_in_the_queue_is_started_and_the_next_round_goes_on(
    harness: Scanning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "QUEUED_MAX", 2)
    harness.runs.find_queued.return_value = [
        queued("a", is_ready=True),
        queued("b", is_ready=False),
    ]

    await harness.scan.scan()
    await harness.scan.scan()
    harness.runs.find_queued.return_value = []
    await harness.scan.scan()
    await harness.scan.scan()

    b = schedule_key("clocks", "b")
    assert harness.batches == [["a"], ["a"]]
    calls = harness.runs.find_queued.await_args_list
    assert [call.kwargs["after"] for call in calls] == [FIRST, b, b, FIRST]


async def test_old_runs_are_deleted_slot_by_slot(harness: Scanning) -> None:
    for _ in range(SLOT_COUNT // schedules.SLOTS_PER_ROUND + 1):
        await harness.scan.forget()

    assert harness.forgotten[:SLOT_COUNT] == list(range(SLOT_COUNT))
    assert harness.forgotten[SLOT_COUNT] == 0


async def test_a_slot_with_many_old_runs_is_gone_on_with_in_the_next_round(
    harness: Scanning,
) -> None:
    harness.windows[1] = schedules.WINDOWS_PER_ROUND + 10

    await harness.scan.forget()
    first = harness.forgotten[:]
    await harness.scan.forget()

    assert first == [0, *[1] * (schedules.WINDOWS_PER_ROUND - 1)]
    second = harness.forgotten[len(first) :]
    assert second == [*[1] * 11, *range(2, 1 + schedules.SLOTS_PER_ROUND)]


async def test_a_full_batch_is_followed_by_another_at_once() -> None:
    harness = Scanning()
    harness.due = [[due(f"s{n}") for n in range(schedules.BATCH_MAX)], [due("last")]]

    async with running(harness.scan.run):
        pass

    assert [len(batch) for batch in harness.batches] == [schedules.BATCH_MAX, 1]


async def test_it_wakes_for_a_change() -> None:
    harness = Scanning()
    harness.runs.seconds_until_due.return_value = 3600.0
    async with running(harness.scan.run):
        harness.due = [[due("a")]]
        harness.changed.set()
        await settled()

    assert harness.batches == [["a"]]


@pytest.mark.parametrize(
    ("error", "level", "why"),
    [
        (errors.StorageUnavailableError("away"), "WARNING", "away"),
        (errors.StorageRefusedError("a bug"), "ERROR", "a bug"),
    ],
    ids=["unavailable", "refused"],
)
async def test_an_error_is_counted_and_logged_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture, error: Exception, level: str, why: str
) -> None:
    harness = Scanning()
    harness.due = [error, [due("a")]]
    async with running(harness.scan.run):
        await asyncio.sleep(0.5)

    assert harness.batches == [["a"]]
    assert harness.metrics.scans_failed.value(("schedules",)) == 1
    [record] = caplog.records
    facts = vars(record)
    assert (facts["levelname"], record.message) == (level, "schedules not run")
    assert facts["why"] == why
