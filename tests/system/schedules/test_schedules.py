"""Schedules on the real engine: created, run and reported, by the service and by commands."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from progressor.domain.processes.task import TaskType
from progressor.sdk import ProcessStatus
from progressor.v1 import schedule_service_pb2 as messages
from progressor.v1.nodes_pb2 import NodeSpec
from progressor.v1.processor_service_pb2 import Complete
from progressor.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from progressor.v1.types_pb2 import TASK_TYPE_INIT
from tests.support.api.server import end_of, failure, violations_of
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    Env,
    answering,
)
from tests.support.processor.scripted import Hang

if TYPE_CHECKING:
    from progressor.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub
from collections.abc import Awaitable, Callable
from pathlib import Path

from progressor.cli.main import main
from progressor.cli.output import ExitCode
from progressor.v1 import types_pb2 as types
from tests.support.api.scripted_engine import Ended

pytestmark = pytest.mark.asyncio(loop_scope="module")

Code = grpc.StatusCode
SECONDLY = messages.CronTimes(expression="* * * * * *")
NEVER = messages.CronTimes(expression="0 0 29 2 *")


class Timetable:
    """What a test asks of the schedules of its environment."""

    def __init__(self, env: Env, stub: "ScheduleServiceAsyncStub") -> None:
        self.env, self.stub = env, stub

    def named(self, schedule_id: str = "nightly") -> dict[str, Any]:
        return {"namespace": self.env.namespace, "schedule_id": schedule_id}

    async def create(self, schedule_id: str = "nightly", **fields: Any) -> messages.Schedule:
        chosen = {"cron": NEVER, "start": messages.ScheduledStart(), **fields}
        spec = messages.ScheduleSpec(**{k: v for k, v in chosen.items() if v is not None})
        request = messages.CreateScheduleRequest(**self.named(schedule_id), spec=spec)
        return (await self.stub.CreateSchedule(request)).schedule

    async def get(
        self, schedule_id: str = "nightly", **fields: Any
    ) -> messages.GetScheduleResponse:
        return await self.stub.GetSchedule(
            messages.GetScheduleRequest(**self.named(schedule_id), **fields)
        )

    async def trigger(self, schedule_id: str = "nightly", **fields: Any) -> messages.ScheduleRun:
        request = messages.TriggerScheduleRequest(**self.named(schedule_id), **fields)
        return (await self.stub.TriggerSchedule(request)).run


@pytest_asyncio.fixture(loop_scope="module")
async def timetable(env: Env) -> AsyncIterator[Timetable]:
    """Return the schedules of an environment, which are deleted when it ends."""
    async with grpc.aio.insecure_channel(env.replica.address) as channel:
        stub: Any = ScheduleServiceStub(channel)
        yield Timetable(env, stub)
        listed = await stub.ListSchedules(messages.ListSchedulesRequest(namespace=env.namespace))
        for schedule in listed.schedules:
            await stub.DeleteSchedule(
                messages.DeleteScheduleRequest(
                    namespace=env.namespace, schedule_id=schedule.schedule_id
                )
            )


def duration(seconds: float) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromMicroseconds(int(seconds * 1_000_000))
    return made


async def test_a_schedule_runs_by_itself_soon_after_it_is_made(timetable: Timetable) -> None:
    """No scan comes in this engine: the loop wakes by itself."""
    env = timetable.env
    await timetable.create(cron=SECONDLY, overlap_policy=messages.OVERLAP_POLICY_ALLOW)

    await env.points.wait("schedule_run", 2, namespace=env.namespace, verdict="started")
    async with asyncio.timeout(PATIENCE_SECONDS):
        requests = await env.processor.received(2)

    assert [each.task.type for each in requests[:2]] == [TASK_TYPE_INIT] * 2
    got = await timetable.get()
    assert got.schedule.started_count >= 2
    first, second, *_ = got.last_runs[::-1]
    assert second.instant.ToDatetime() - first.instant.ToDatetime() == dt.timedelta(seconds=1)
    assert first.process_id == f"nightly/{first.instant.ToDatetime().isoformat()}Z"


async def test_a_schedule_tells_what_comes_and_what_was(timetable: Timetable) -> None:
    times = messages.CronTimes(expression="0 3 * * *", time_zone="Europe/Berlin")
    made = await timetable.create(cron=times, jitter=duration(60))
    await timetable.trigger()

    got = await timetable.get(next_count=3, last_count=5)

    assert got.schedule.spec.cron == times
    comes = [each.instant.ToDatetime(dt.UTC) for each in got.next_runs]
    assert comes[0] == made.next_instant.ToDatetime(dt.UTC)
    assert all(
        dt.timedelta() <= each.due_at.ToDatetime() - each.instant.ToDatetime() < dt.timedelta(0, 60)
        for each in got.next_runs
    )
    assert len(comes) == 3
    assert [each.cause for each in got.last_runs] == [messages.SCHEDULE_RUN_CAUSE_TRIGGER]
    assert not (await timetable.get(next_count=0, last_count=0)).next_runs


async def test_the_previous_one_is_cancelled_and_its_step_fenced_off(timetable: Timetable) -> None:
    env = timetable.env
    hang = Hang()
    env.processor.on_type(TASK_TYPE_INIT, hang, answering(complete=Complete()))
    await timetable.create(overlap_policy=messages.OVERLAP_POLICY_CANCEL_PREVIOUS)
    first = await timetable.trigger()
    await env.asked(first.process_id)

    second = await timetable.trigger()
    hang.released.set()
    await env.settled(second.process_id)

    states = [each.state for each in (await timetable.get()).last_runs]
    assert states == [messages.SCHEDULE_RUN_STATE_DONE, messages.SCHEDULE_RUN_STATE_CANCELLED]
    cancelled = await env.client.get(first.process_id)
    assert cancelled.process.status is ProcessStatus.ERROR
    assert cancelled.process.detail == "SCHEDULE_CANCELLED"


async def test_a_job_of_a_schedule_is_done_node_by_node(timetable: Timetable) -> None:
    env = timetable.env
    env.processor.on_type(TASK_TYPE_INIT, answering(complete=Complete(result=b"x")))
    nodes = [NodeSpec(name="a"), NodeSpec(name="b", predecessors=["a"])]
    await timetable.create(start=None, job=messages.ScheduledJob(nodes=nodes))

    run = await timetable.trigger()
    await env.asked(f"{run.process_id}/b")

    await env.points.wait("settled", key=env.key(run.process_id), task_type=TaskType.JOIN)
    [last] = (await timetable.get()).last_runs
    assert last.state == messages.SCHEDULE_RUN_STATE_DONE


async def test_a_job_whose_node_has_no_place_is_refused(timetable: Timetable) -> None:
    nodes = [NodeSpec(name="a", namespace="nowhere")]
    error = await failure(timetable.create(start=None, job=messages.ScheduledJob(nodes=nodes)))

    assert list(violations_of(error)) == ["spec.job.nodes[0].namespace"]


async def test_what_is_not_there_or_taken_or_changed_is_told_so(timetable: Timetable) -> None:
    code, info = await end_of(timetable.get())
    assert (code, info.reason) == (Code.NOT_FOUND, "SCHEDULE_NOT_FOUND")
    assert info.metadata["schedule_id"] == "nightly"
    await timetable.create()
    code, info = await end_of(timetable.create())
    assert (code, info.reason) == (Code.ALREADY_EXISTS, "SCHEDULE_ALREADY_EXISTS")
    pause = messages.PauseScheduleRequest(**timetable.named(), expected_revision=7)
    code, info = await end_of(timetable.stub.PauseSchedule(pause))
    assert (code, info.reason) == (Code.ABORTED, "SCHEDULE_CHANGED")
    assert (info.metadata["expected"], info.metadata["actual"]) == ("7", "1")
    request = messages.CreateScheduleRequest(namespace="nowhere", schedule_id="a")
    code, info = await end_of(timetable.stub.CreateSchedule(request))
    assert (code, info.reason) == (Code.NOT_FOUND, "NAMESPACE_NOT_FOUND")


async def test_a_schedule_is_changed_paused_resumed_and_deleted(timetable: Timetable) -> None:
    made = await timetable.create()
    spec = messages.ScheduleSpec(
        interval=messages.IntervalTimes(every=duration(3600)), start=messages.ScheduledStart()
    )
    updated = await timetable.stub.UpdateSchedule(
        messages.UpdateScheduleRequest(**timetable.named(), spec=spec, expected_revision=1)
    )
    paused = await timetable.stub.PauseSchedule(
        messages.PauseScheduleRequest(**timetable.named(), note="vacation")
    )
    resumed = await timetable.stub.ResumeSchedule(
        messages.ResumeScheduleRequest(**timetable.named(), expected_revision=3)
    )
    await timetable.stub.DeleteSchedule(messages.DeleteScheduleRequest(**timetable.named()))

    assert updated.schedule.spec.WhichOneof("times") == "interval"
    assert updated.schedule.next_at != made.next_at
    assert (paused.schedule.paused, paused.schedule.note) == (True, "vacation")
    assert not paused.schedule.HasField("next_at")
    assert (resumed.schedule.paused, resumed.schedule.revision) == (False, 4)
    assert (await failure(timetable.get())).code() is Code.NOT_FOUND


DONE = answering(complete=Complete())
SPAN = ("--since", "2026-01-01T00:00:00Z", "--until", "2026-01-01T03:00:00Z")
Run = Callable[..., Awaitable[Ended]]


@pytest.fixture
def run(env: Env, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command about the environment's namespace beside the engine."""

    async def run_beside(*arguments: str) -> Ended:
        where = ("--address", env.replica.address, "--namespace", env.namespace)
        capfd.readouterr()
        code = await asyncio.to_thread(main, ["schedule", *arguments, *where])
        captured = capfd.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    return run_beside


async def test_a_schedule_is_made_changed_paused_triggered_and_deleted(env: Env, run: Run) -> None:
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)

    created = await run("create", "s", "--cron", "30 2 29 2 *", "--time-zone", "UTC", "--start")
    updated = await run("update", "s", "--jitter", "5m", "--overlap", "allow", "--json")
    paused = await run("pause", "s", "--note", "why")
    triggered = await run("trigger", "s", "--json")
    got = await run("get", "s", "--json")
    resumed = await run("resume", "s")
    coming = await run("next", "s", "--count", "2", "--json")
    deleted = await run("delete", "s")
    gone = await run("get", "s")

    assert [each.code for each in (created, paused, resumed, deleted, gone)] == [0, 0, 0, 0, 3]
    assert updated.document["spec"]["jitter_seconds"] == 300
    assert triggered.document["process_id"].startswith("s/")
    assert got.document["schedule"]["paused"]
    assert got.document["schedule"]["note"] == "why"
    assert got.document["schedule"]["started_count"] == 1
    assert got.document["last_runs"][0]["cause"] == "trigger"
    years = [each["instant"][4:16] for each in coming.document["next_runs"]]
    assert years == ["-02-29T02:30"] * 2


async def test_a_run_that_is_refused_says_why_to_people_and_to_programs(env: Env, run: Run) -> None:
    await run("create", "s", "--every", "1h", "--call", "absent", "--paused")

    triggered = await run("trigger", "s", "--json")
    people = await run("get", "s")
    [recorded] = (await env.client.schedules.get("s")).last_runs
    await run("delete", "s")

    why = "process 'absent' was not called: it does not exist"
    assert triggered.code == ExitCode.FAILED
    assert triggered.document["error"]["message"] == why
    assert f"PROCESS_NOT_FOUND: {why}" in " ".join(people.out.split())
    assert recorded.error is not None
    assert (recorded.error.reason, recorded.error.message) == ("PROCESS_NOT_FOUND", why)


async def test_a_job_is_submitted_for_each_instant_of_a_backfill(
    env: Env, run: Run, tmp_path: Path
) -> None:
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)
    file = tmp_path / "job.json"
    file.write_text('{"deadline": "1h", "nodes": {"b": {"after": ["a"]}, "a": {}}}')

    await run("create", "s", "--every", "1h", "--job", str(file), "--paused")
    filled = await run("backfill", "s", *SPAN, "--overlap", "allow", "--json")
    again = await run("backfill", "s", *SPAN, "--overlap", "allow", "--json")
    listed = await run("list", "--json")
    await run("delete", "s")

    assert filled.document == {"instant_count": 3, "queued_count": 3}
    assert again.document["instant_count"] == 3
    assert listed.document["schedules"][0]["spec"]["interval"]["every_seconds"] == 3600
