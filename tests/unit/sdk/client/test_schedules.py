"""Schedules through the clients: what is sent, what comes back, both ways without a loss."""

import asyncio
import dataclasses
import datetime as dt
import re
from typing import Any

import grpc
import msgspec
import pytest

from progressor.sdk import (
    JSON,
    Backfilled,
    Client,
    Constraints,
    Cron,
    Graph,
    NextRun,
    OverlapPolicy,
    RetryPolicy,
    ScheduledJob,
    ScheduledStart,
    ScheduleRunCause,
    ScheduleRunState,
    ScheduleSpec,
    SyncClient,
    TaskError,
    ZombiePolicy,
)
from progressor.sdk.client.schedules import SPEC
from progressor.sdk.codec.wire import WireEnum, instant_to_wire
from progressor.sdk.values.graph import graph_from_wire, nodes_to_wire
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import schedule_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.scripted_engine import refusal, scripted_engine

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
NIGHTLY = ScheduleSpec(
    times=Cron("30 2 * * *", "Europe/Berlin"), target=ScheduledStart({"report": "sales"})
)


@pytest.mark.parametrize("ours", [OverlapPolicy, ScheduleRunState, ScheduleRunCause])
def test_enums_mirror_the_wire(ours: type[WireEnum]) -> None:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", ours.__name__).upper()
    theirs = pb.DESCRIPTOR.enum_types_by_name[ours.__name__]

    assert {f"{prefix}_{it.name}": it.number for it in ours} == {
        value.name: value.number for value in theirs.values
    }


def test_runs_tell_what_has_ended() -> None:
    assert [it for it in ScheduleRunState if not it.has_ended] == [
        "unspecified",
        "queued",
        "running",
    ]


def diamond() -> Graph:
    graph = Graph()
    a = graph.node("a", 1)
    graph.node("b", after=[a, graph.node("c", {"x": [1]}, after=a)], wants_results=True)
    return graph


def test_a_scheduled_job_comes_back_as_it_was_sent() -> None:
    target = ScheduledJob(
        diamond(), job_id_template="j-{instant}", timeout=DAY, context={"a": "b"}, metadata={"n": 1}
    )
    message = SPEC.message(ScheduleSpec(times=Cron("@daily"), target=target), JSON)
    read = SPEC.read(message, context=JSON).target

    assert isinstance(read, ScheduledJob)
    assert message.job.nodes == nodes_to_wire(read.graph, JSON)
    assert dataclasses.replace(read, graph=target.graph) == target
    bare = SPEC.message(ScheduleSpec(times=Cron("@daily"), target=ScheduledJob(diamond())), JSON)
    assert not bare.job.HasField("timeout")
    plain = SPEC.read(bare, context=JSON).target
    assert isinstance(plain, ScheduledJob)
    assert (plain.timeout, plain.context, plain.metadata) == (None, {}, None)


def test_a_graph_is_read_in_whatever_order_it_comes() -> None:
    full = nodes.NodeSpec(
        name="a",
        namespace="maps",
        process_id="f",
        args=b"[1]",
        wants_results=True,
        target="t",
    )
    built = Graph()
    built.node(
        "x", constraints=Constraints(priority=1), retry_policy=RetryPolicy(jitter=0.5),
        zombie_policy=ZombiePolicy.FAIL,
    )  # fmt: skip
    [x] = nodes_to_wire(built, JSON)
    specs = [nodes.NodeSpec(name="b", predecessors=["a", "x"]), full, x]

    graph = graph_from_wire(specs, JSON)

    assert nodes_to_wire(graph, JSON) == [full, x, specs[0]]
    assert graph.present == ()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ScheduledJob(Graph()), "at least one node"),
        (ScheduledJob(diamond()), "no node 'old': each run submits a new job"),
    ],
)
def test_a_scheduled_job_is_a_whole_graph(target: ScheduledJob, words: str) -> None:
    if len(target.graph):
        target.graph.node("late", after="old")

    with pytest.raises(ValueError, match=words):
        SPEC.message(ScheduleSpec(times=Cron("@daily"), target=target), JSON)


def a_schedule(schedule_id: str = "s") -> pb.Schedule:
    message = pb.Schedule(
        namespace="n",
        schedule_id=schedule_id,
        spec=SPEC.message(NIGHTLY, JSON),
        paused=True,
        note="why",
        revision=3,
        started_count=1,
        skipped_count=2,
        missed_count=3,
        refused_count=4,
    )
    message.created_at.FromDatetime(NOON)
    message.updated_at.FromDatetime(NOON)
    message.next_instant.FromDatetime(NOON)
    return message


def a_run() -> pb.ScheduleRun:
    message = pb.ScheduleRun(
        cause=pb.SCHEDULE_RUN_CAUSE_TRIGGER,
        state=pb.SCHEDULE_RUN_STATE_MISSED,
        process_id="p",
        task_id=7,
        error=types.TaskError(code=9, reason="R", message="m"),
        missed_count=5,
    )
    message.instant.FromDatetime(NOON)
    message.due_at.FromDatetime(NOON)
    message.missed_until.FromDatetime(NOON + DAY)
    return message


async def test_create_sends_the_spec_and_returns_the_schedule() -> None:
    async with (
        scripted_engine(pb.CreateScheduleResponse(schedule=a_schedule())) as engine,
        Client(engine.address, namespace="n") as client,
    ):
        made = await client.schedules.create("s", NIGHTLY, paused=True, note="why")

    assert engine.requests == [
        pb.CreateScheduleRequest(
            namespace="n",
            schedule_id="s",
            spec=SPEC.message(NIGHTLY, JSON),
            paused=True,
            note="why",
        )
    ]
    assert (made.namespace, made.schedule_id, made.revision) == ("n", "s", 3)
    assert (made.paused, made.note) == (True, "why")
    assert made.spec == dataclasses.replace(NIGHTLY, jitter=dt.timedelta())
    assert (made.created_at, made.updated_at) == (NOON, NOON)
    assert (made.next_instant, made.next_at) == (NOON, None)
    counts = (made.started_count, made.skipped_count, made.missed_count, made.refused_count)
    assert counts == (1, 2, 3, 4)


async def test_update_replaces_all_of_it() -> None:
    async with (
        scripted_engine(pb.UpdateScheduleResponse(schedule=a_schedule())) as engine,
        Client(engine.address) as client,
    ):
        await client.schedules.update("s", NIGHTLY, expected_revision=2, namespace="n")

    assert engine.requests == [
        pb.UpdateScheduleRequest(
            namespace="n",
            schedule_id="s",
            spec=SPEC.message(NIGHTLY, JSON),
            expected_revision=2,
        )
    ]


@pytest.mark.parametrize(
    ("counts", "fields"),
    [({}, {}), ({"next_count": 0, "last_count": 100}, {"next_count": 0, "last_count": 100})],
)
async def test_get_tells_runs_to_come_and_of_the_past(counts: Any, fields: Any) -> None:
    answer = pb.GetScheduleResponse(schedule=a_schedule(), last_runs=[a_run(), pb.ScheduleRun()])
    following = answer.next_runs.add()
    following.instant.FromDatetime(NOON)
    following.due_at.FromDatetime(NOON + DAY)
    async with scripted_engine(answer) as engine, Client(engine.address, namespace="n") as client:
        view = await client.schedules.get("s", **counts)

    assert engine.requests == [pb.GetScheduleRequest(namespace="n", schedule_id="s", **fields)]
    assert view.schedule.schedule_id == "s"
    assert view.next_runs == (NextRun(instant=NOON, due_at=NOON + DAY),)
    missed, bare = view.last_runs
    assert (missed.instant, missed.due_at, missed.recorded_at) == (NOON, NOON, None)
    assert (missed.cause, missed.state) == (ScheduleRunCause.TRIGGER, ScheduleRunState.MISSED)
    assert (missed.process_id, missed.task_id) == ("p", 7)
    assert missed.error == TaskError(code=9, reason="R", message="m")
    assert (missed.missed_count, missed.missed_until) == (5, NOON + DAY)
    assert (bare.task_id, bare.error, bare.started_at, bare.ended_at) == (None,) * 4
    told = msgspec.json.decode(msgspec.json.encode(view))
    assert told["last_runs"][0]["state"] == "missed"
    assert told["schedule"]["spec"]["times"]["time_zone"] == "Europe/Berlin"


async def test_pause_resume_and_delete() -> None:
    script = (
        pb.PauseScheduleResponse(schedule=a_schedule()),
        pb.ResumeScheduleResponse(schedule=a_schedule()),
        pb.DeleteScheduleResponse(),
    )
    async with scripted_engine(*script) as engine, Client(engine.address, namespace="n") as client:
        paused = await client.schedules.pause("s", note="why", expected_revision=1)
        await client.schedules.resume("s", note="done")
        await client.schedules.delete("s", expected_revision=2)

    named: dict[str, Any] = {"namespace": "n", "schedule_id": "s"}
    assert engine.requests == [
        pb.PauseScheduleRequest(**named, note="why", expected_revision=1),
        pb.ResumeScheduleRequest(**named, note="done"),
        pb.DeleteScheduleRequest(**named, expected_revision=2),
    ]
    assert paused.revision == 3


async def test_trigger_is_repeated_with_a_key_only() -> None:
    away = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    answer = pb.TriggerScheduleResponse(run=a_run())
    async with (
        scripted_engine(away, answer, answer) as engine,
        Client(engine.address, namespace="n", jitter=lambda: 1.0) as client,
    ):
        await client.schedules.trigger("s", idempotency_key="k")
        ran = await client.schedules.trigger("s", overlap_policy=OverlapPolicy.ALLOW)

    assert ran.process_id == "p"
    assert engine.requests[1:] == [
        pb.TriggerScheduleRequest(namespace="n", schedule_id="s", idempotency_key="k"),
        pb.TriggerScheduleRequest(
            namespace="n", schedule_id="s", overlap_policy=pb.OVERLAP_POLICY_ALLOW
        ),
    ]


async def test_backfill_names_the_span() -> None:
    answer = pb.BackfillScheduleResponse(instant_count=9, queued_count=4)
    async with scripted_engine(answer) as engine, Client(engine.address, namespace="n") as client:
        filled = await client.schedules.backfill(
            "s", NOON, NOON + DAY, overlap_policy=OverlapPolicy.QUEUE_ONE
        )

    [request] = engine.requests
    assert request == pb.BackfillScheduleRequest(
        namespace="n",
        schedule_id="s",
        since=instant_to_wire(NOON),
        until=instant_to_wire(NOON + DAY),
        overlap_policy=pb.OVERLAP_POLICY_QUEUE_ONE,
    )
    assert filled == Backfilled(instant_count=9, queued_count=4)


async def test_the_blocking_client_does_the_same() -> None:
    def ask(address: str) -> None:
        with SyncClient(address, namespace="n") as client:
            client.schedules.create("s", NIGHTLY)
            assert [it.schedule_id for it in client.schedules.list()] == ["a"]

    script = (
        pb.CreateScheduleResponse(schedule=a_schedule()),
        pb.ListSchedulesResponse(schedules=[a_schedule("a")]),
    )
    async with scripted_engine(*script) as engine:
        await asyncio.to_thread(ask, engine.address)

    assert engine.requests[0].spec == SPEC.message(NIGHTLY, JSON)
