"""Requests of ScheduleService: violations by field; schedules and runs in answers."""

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from progressor import errors
from progressor.api.schedules import servicer as schedule_codec
from progressor.api.schedules.servicer import ScheduleServicer
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import JobOptions
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    Calendar,
    CallTarget,
    CronTimes,
    IntervalTimes,
    JobTarget,
    OverlapPolicy,
    Schedule,
    ScheduleSpec,
    StartTarget,
    Target,
    Times,
    Timing,
    Upcoming,
    schedule_key,
)
from progressor.storage.schedules.runs import StoredRuns
from progressor.storage.schedules.schedules import Schedules
from progressor.v1 import schedule_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.v1.nodes_pb2 import NodeSpec as NodeMessage
from tests.support.api.memory import Memory, MemoryNamespaces
from tests.support.clock import ManualClock
from tests.support.runtime.stubs import stub
from tests.unit.api.test_calls import Context

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
KEY = schedule_key("clocks", "nightly")
CRON = pb.CronTimes(expression="0 3 * * *", time_zone="Europe/Berlin")


def spec(**fields: Any) -> pb.ScheduleSpec:
    chosen: dict[str, Any] = {"cron": CRON, "start": pb.ScheduledStart(), **fields}
    return pb.ScheduleSpec(**{name: value for name, value in chosen.items() if value is not None})


def creation(message: pb.ScheduleSpec | None = None, **fields: Any) -> pb.CreateScheduleRequest:
    chosen: dict[str, Any] = {"namespace": "clocks", "schedule_id": "nightly", **fields}
    return pb.CreateScheduleRequest(spec=message or spec(), **chosen)


def read(message: pb.CreateScheduleRequest) -> schedule_codec.Creation:
    return schedule_codec.create_from_wire(message, payload_bytes_max=100)


def said_of(decode: Callable[[], object]) -> list[str]:
    """Return what is wrong with a request, field by field."""
    with pytest.raises(errors.InvalidRequestError) as caught:
        decode()
    return [f"{each.field}: {each.description}" for each in caught.value.violations]


def seconds(value: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromMicroseconds(int(value * 1_000_000))
    return duration


def timestamp(value: dt.datetime) -> timestamp_pb2.Timestamp:
    stamp = timestamp_pb2.Timestamp()
    stamp.FromDatetime(value)
    return stamp


def a_schedule(target: Target | None = None, times: Times | None = None, **fields: Any) -> Schedule:
    timing = Timing(
        times=times or CronTimes("0 3 * * *", "UTC"),
        jitter=dt.timedelta(seconds=5),
        start_at=NOON,
        end_at=NOON + dt.timedelta(days=1),
        overlap_policy=OverlapPolicy.QUEUE_ONE,
        catch_up_window=dt.timedelta(hours=1),
    )
    chosen: dict[str, Any] = {
        "key": KEY,
        "spec": ScheduleSpec(timing=timing, target=target or StartTarget()),
        "paused": False,
        "note": "by hand",
        "revision": 3,
        "created_at": NOON,
        "updated_at": NOON,
        "upcoming": Upcoming(NOON, NOON + dt.timedelta(seconds=1)),
        "started_count": 1,
        "skipped_count": 2,
        "missed_count": 3,
        "refused_count": 4,
    }
    return Schedule(**{**chosen, **fields})


TARGETS: tuple[Target, ...] = (
    StartTarget(
        template="{instant}",
        args=b"args",
        caller_context={"a": "b"},
        metadata={"kind": "night"},
        history_range=HistoryRange(after=0, limit=3, direction=Direction.BACKWARD),
        constraints=Constraints(gates={"db": 1}),
    ),
    CallTarget(
        task_type=TaskType.CALL,
        process_id="order-1",
        args=b"x",
        history_range=HistoryRange(after=0, limit=None, direction=Direction.FORWARD),
    ),
    CallTarget(task_type=TaskType.NOTIFY, process_id="order-1", caller_context={"a": "b"}),
    JobTarget(
        nodes=(
            NodeSpec(name="a", args=b"1"),
            NodeSpec(
                name="b",
                namespace="others",
                predecessors=("a",),
                constraints=Constraints(priority=2, gates={"db": None}),
                options=JobOptions(
                    takes_results=True,
                    retry_policy=RetryPolicy(attempts_max=2),
                    zombie_policy=ZombiePolicy.FAIL,
                    target="host:1",
                ),
            ),
        ),
        template="job-{instant}",
        timeout=dt.timedelta(seconds=9),
        caller_context={"a": "b"},
        metadata={"kind": "night"},
    ),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize(
    "times",
    [CronTimes("0 3 * * *", "UTC"), IntervalTimes(dt.timedelta(minutes=1), NOON)],
    ids=["cron", "interval"],
)
def test_a_schedule_that_goes_out_comes_in_as_it_was(target: Target, times: Times) -> None:
    schedule = a_schedule(target, times)

    message = schedule_codec.schedule_to_wire(schedule)
    back = read(creation(message.spec))

    assert back.spec == schedule.spec


def test_a_list_leaves_the_nodes_of_jobs_out() -> None:
    page = schedule_codec.page_to_wire((a_schedule(TARGETS[-1]),), page_size=1)

    assert [len(each.spec.job.nodes) for each in page.schedules] == [0]


def cron(**fields: Any) -> dict[str, Any]:
    return {"cron": pb.CronTimes(**fields)}


def interval(**fields: Any) -> dict[str, Any]:
    return {"cron": None, "interval": pb.IntervalTimes(**fields)}


def start(**fields: Any) -> dict[str, Any]:
    return {"start": pb.ScheduledStart(**fields)}


def job(*nodes: NodeMessage, **fields: Any) -> dict[str, Any]:
    return {"start": None, "job": pb.ScheduledJob(nodes=nodes, **fields)}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cron": None}, "times: must be cron or interval"),
    ({"start": None}, "target: must be start, call, notify or job"),
    (cron(expression="* 25 * * *"),
     "cron.expression: '25' is not a valid hour, in '* 25 * * *'"),
    (cron(expression="0 3 * * *", time_zone="Mars"),
     "cron.time_zone: 'Mars' is not a time zone of the IANA database"),
    (cron(expression="*" * 257), "cron.expression: must be at most 256 bytes, got 257"),
    (interval(), "interval.every: must be given"),
    (interval(every=seconds(0.5)), "interval.every: must be 1 s to 3660 days, got 0.5 s"),
    (interval(every=seconds(-1)), "interval.every: must be 1 s to 3660 days, got -1 s"),
    ({"jitter": seconds(-1)}, "jitter: must be 0 s to 86400 s, got -1 s"),
    ({"jitter": seconds(86401)}, "jitter: must be 0 s to 86400 s, got 86401 s"),
    ({"catch_up_window": seconds(0)}, "catch_up_window: must be 1 s to 366 days, got 0 s"),
    ({"start_at": timestamp(NOON), "end_at": timestamp(NOON - dt.timedelta(1))},
     "end_at: must not be before start_at"),
    ({"start_at": timestamp(dt.datetime(2300, 1, 1, tzinfo=dt.UTC))},
     "start_at: must be from 1970 to 2200, got 2300-01-01T00:00:00+00:00"),
    ({"overlap_policy": 9}, "overlap_policy: unknown overlap policy 9"),
    (start(process_id_template="always"), "start.process_id_template: must contain {instant}"),
    (start(process_id_template="{instant}" + "x" * 250),
     "start.process_id_template: must be at most 256 bytes, got 277"),
    (start(args=b"x" * 101), "start.args: must be at most 100 bytes, got 101"),
    (start(constraints=types.Constraints(run_at=timestamp(NOON))),
     "start.constraints.run_at: must not be set: a schedule has instants of its own"),
    (start(history_range=types.HistoryRange(after=1)),
     "start.history_range.after: must be 0: a new process has no events"),
    (start(history_range=types.HistoryRange(limit=-1)),
     "start.history_range.limit: must be 0 to 100000, got -1"),
    ({"start": None, "call": pb.ScheduledCall()}, "call.process_id: must not be empty"),
    ({"start": None, "notify": pb.ScheduledNotify(process_id="a\n")},
     "notify.process_id: must not contain the control character U+000A"),
    (job(), "job.nodes: must have 1 to 10000 items, got 0"),
    (job(NodeMessage(name="a", process_id="p")),
     "job.nodes[0].process_id: must not be set: each run needs followers of its own"),
    (job(NodeMessage(name="a", predecessors=["a"])), "job.nodes[0].predecessors[0]: "),
    (job(NodeMessage(name="a"), timeout=seconds(0)), "job.timeout: "),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "violation"), REFUSED)
def test_what_is_wrong_with_a_spec_is_named(fields: dict[str, Any], violation: str) -> None:
    (found,) = said_of(lambda: read(creation(spec(**fields))))

    assert found.startswith(f"spec.{violation}")


def test_all_violations_of_a_schedule_are_reported_together() -> None:
    message = creation(
        spec(cron=None, start=None, jitter=seconds(-1)),
        namespace="Clocks",
        schedule_id="x" * 129,
        note="n" * 1025,
    )

    assert said_of(lambda: read(message)) == [
        "namespace: must be 1 to 64 characters of [a-z0-9._-], got 'Clocks'",
        "schedule_id: must be at most 128 bytes, got 129",
        "spec.times: must be cron or interval",
        "spec.jitter: must be 0 s to 86400 s, got -1 s",
        "spec.target: must be start, call, notify or job",
        "note: must be at most 1024 bytes, got 1025",
    ]


def test_an_update_expects_a_revision() -> None:
    message = pb.UpdateScheduleRequest(
        namespace="clocks", schedule_id="nightly", spec=spec(), expected_revision=4
    )
    update = schedule_codec.update_from_wire(message, payload_bytes_max=100)

    assert (update.key, update.expected_revision) == (KEY, 4)
    message.expected_revision = -1
    assert said_of(lambda: schedule_codec.update_from_wire(message, payload_bytes_max=1)) == [
        "expected_revision: must not be negative, got -1"
    ]


def test_a_reading_has_bounds_and_defaults() -> None:
    message = pb.GetScheduleRequest(namespace="clocks", schedule_id="nightly")

    assert schedule_codec.get_from_wire(message) == schedule_codec.Reading(
        key=KEY, next_count=5, last_count=10
    )
    message.next_count, message.last_count = 0, 101
    assert said_of(lambda: schedule_codec.get_from_wire(message)) == [
        "last_count: must be 0 to 100, got 101"
    ]


def backfill(**fields: Any) -> pb.BackfillScheduleRequest:
    chosen: dict[str, Any] = {
        "namespace": "clocks",
        "schedule_id": "nightly",
        "since": timestamp(NOON - dt.timedelta(days=1)),
        "until": timestamp(NOON),
        **fields,
    }
    return pb.BackfillScheduleRequest(**chosen)


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"since": None}, "since: must be given"),
        ({"until": None}, "until: must be given"),
        ({"since": timestamp(NOON)}, "until: must be after since"),
        ({"until": timestamp(NOON + dt.timedelta(1))}, "until: must not be in the future"),
        ({"since": timestamp(NOON - dt.timedelta(3661))},
         "since: must be at most 3660 days before until"),
        ({"overlap_policy": pb.OVERLAP_POLICY_CANCEL_PREVIOUS},
         "overlap_policy: must not be CANCEL_PREVIOUS, which would cancel its own runs"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_backfill_is_named(fields: dict[str, Any], violation: str) -> None:
    message = backfill(**fields)

    assert said_of(lambda: schedule_codec.backfill_from_wire(message, now=NOON)) == [violation]


# --- Instants are computed off the event loop, by one thread


class Computing:
    """A computation of instants that lasts until it is let go, and notes who does it."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.begun = threading.Semaphore(0)
        self.free = threading.Event()

    def compute(self, first: Upcoming) -> list[Upcoming]:
        self.threads.append(threading.current_thread().name)
        self.begun.release()
        assert self.free.wait(30), "it was not released"
        return [first]


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Computing:
    made = Computing()

    def compute(_calendar: Calendar, first: Upcoming, _count: int) -> list[Upcoming]:
        return made.compute(first)

    monkeypatch.setattr(Calendar, "next", compute)
    return made


@pytest.fixture
def servicer() -> ScheduleServicer:
    schedule = a_schedule(times=CronTimes("0 0 29 2 */7", "UTC"))
    namespaces = MemoryNamespaces("clocks")
    backend = Memory(namespaces=namespaces).backend(
        schedules=stub(Schedules, get=schedule), schedule_runs=stub(StoredRuns, last=())
    )
    return ScheduleServicer(lambda: backend, clock=ManualClock())


def asked(servicer: ScheduleServicer) -> "asyncio.Task[Any]":
    request = pb.GetScheduleRequest(namespace="clocks", schedule_id="nightly", next_count=100)
    return asyncio.ensure_future(servicer.get_schedule(request, Context()))


async def test_one_thread_computes_for_one_caller_at_a_time(
    computing: Computing, servicer: ScheduleServicer
) -> None:
    gets = [asked(servicer) for _ in range(10)]
    await asyncio.to_thread(computing.begun.acquire)
    begun = len(computing.threads)
    computing.free.set()

    views = await asyncio.gather(*gets)

    assert begun == 1
    assert len(computing.threads) == 10
    assert {name.rsplit("_", 1)[0] for name in computing.threads} == {"calendars"}
    assert all(len(view.next_runs) == 1 for view in views)


async def test_nothing_is_computed_for_a_caller_that_has_left(
    computing: Computing, servicer: ScheduleServicer
) -> None:
    first = asked(servicer)
    await asyncio.to_thread(computing.begun.acquire)
    gone = [asked(servicer) for _ in range(10)]
    await asyncio.sleep(0)
    last = asked(servicer)
    for get in gone:
        get.cancel()
    await asyncio.wait(gone)
    computing.free.set()

    await first
    await last

    assert len(computing.threads) == 2
