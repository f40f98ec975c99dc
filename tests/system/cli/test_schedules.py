"""Schedules on the command line: what is asked, what is refused, and what is printed."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from progressor.sdk.codec.wire import object_to_wire
from progressor.v1 import nodes_pb2 as nodes
from progressor.v1 import schedule_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.support.api.job_messages import an_error, at
from tests.support.api.schedule_messages import a_schedule, a_spec, seconds
from tests.support.api.scripted_engine import Cli, Refusal, ScriptedEngine

CRON = ("--cron", "30 2 * * *")
START = (*CRON, "--start")


@pytest.fixture
def there(engine: ScriptedEngine) -> ScriptedEngine:
    """Return an engine that has one schedule, whatever is asked of it."""
    engine.answers |= {
        "CreateSchedule": pb.CreateScheduleResponse(schedule=a_schedule()),
        "UpdateSchedule": pb.UpdateScheduleResponse(schedule=a_schedule()),
        "GetSchedule": pb.GetScheduleResponse(schedule=a_schedule()),
        "PauseSchedule": pb.PauseScheduleResponse(schedule=a_schedule(paused=True, note="why")),
        "ResumeSchedule": pb.ResumeScheduleResponse(schedule=a_schedule()),
    }
    return engine


def words_of(out: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in out.splitlines()]


def test_create_sends_all_that_is_given(there: ScriptedEngine, cli: Cli) -> None:
    ended = cli(
        *("schedule", "create", "nightly", *START, "--time-zone", "Europe/Berlin"),
        *("--jitter", "5m", "--start-at", "2026-03-01T12:00:00Z", "--end-at", "none"),
        *("--overlap", "queue_one", "--catch-up-window", "2h", "--paused", "--note", "n"),
        *("--id-template", "p-{instant}", "--args", '{"a":1}', "--context", "k=v"),
        *("--metadata", '{"m": 1}', "--gate", "g=1", "-n", "orders"),
    )

    expected = pb.ScheduleSpec(
        cron=pb.CronTimes(expression="30 2 * * *", time_zone="Europe/Berlin"),
        jitter=seconds(300),
        start_at=at(0),
        overlap_policy=pb.OVERLAP_POLICY_QUEUE_ONE,
        catch_up_window=seconds(7200),
        start=pb.ScheduledStart(
            process_id_template="p-{instant}",
            args=b'{"a":1}',
            caller_context={"k": "v"},
            metadata=object_to_wire({"m": 1}),
            constraints=types.Constraints(
                gates=[types.GateUse(gate="g", capacity=1)], priority=3, hold=types.GATE_HOLD_TASK
            ),
        ),
    )
    assert (ended.code, ended.err) == (0, "")
    assert there.requests == [
        pb.CreateScheduleRequest(
            namespace="orders", schedule_id="nightly", spec=expected, paused=True, note="n"
        )
    ]


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        (("--call", "p", "--text", "x"), "call", pb.ScheduledCall(process_id="p", args=b"x")),
        (("--notify", "p"), "notify", pb.ScheduledNotify(process_id="p")),
        (("--start",), "start", pb.ScheduledStart()),
    ],
)
def test_a_run_calls_notifies_or_starts(
    options: tuple[str, ...], field: str, expected: Any, there: ScriptedEngine, cli: Cli
) -> None:
    cli("schedule", "create", "s", "--every", "90s", "--anchor", "2026-03-01T12:00:00Z", *options)

    spec = there.requests[0].spec
    assert getattr(spec, spec.WhichOneof("target")) == expected
    assert spec.WhichOneof("target") == field
    assert spec.interval == pb.IntervalTimes(every=seconds(90), anchor=at(0))


def test_a_run_submits_the_job_of_a_file(there: ScriptedEngine, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(
        '{"job_id": "j-{instant}", "deadline": "2h", "context": {"k": "v"},'
        ' "metadata": {"m": 1}, "nodes": {"b": {"after": ["a"]}, "a": {"args": 1}}}'
    )

    ended = cli("schedule", "create", "s", *CRON, "--job", str(file))

    job = there.requests[0].spec.job
    assert ended.code == 0
    assert (job.job_id_template, job.timeout) == ("j-{instant}", seconds(7200))
    assert [(it.name, it.args, [*it.predecessors]) for it in job.nodes] == [
        ("a", b"1", []),
        ("b", b"", ["a"]),
    ]
    assert (dict(job.caller_context), job.metadata["m"]) == ({"k": "v"}, 1)


def test_what_the_engine_refuses_of_a_job_is_told_with_its_place(
    engine: ScriptedEngine, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"nodes": {"b": {"after": ["a"]}, "a": {}}}')
    engine.answers["CreateSchedule"] = Refusal(
        code=grpc.StatusCode.INVALID_ARGUMENT,
        reason="INVALID_REQUEST",
        violations={"spec.job.nodes[1].process_id": "must not be", "spec.jitter": "is long"},
    )

    ended = cli("schedule", "create", "s", *CRON, "--job", str(file))

    assert ended.code == 2
    assert f"error: {file}: nodes.b.process_id: must not be; --jitter: is long" in ended.err


@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        (
            a_spec(start=pb.ScheduledStart(process_id_template="p-{instant}", args=b"x")),
            [["does", "starts", "a", "process"], ["id", "p-{instant}"], ["args", "x"]],
        ),
        (a_spec(notify=pb.ScheduledNotify(process_id="q")), [["does", "notifies", "q"]]),
        (
            a_spec(
                job=pb.ScheduledJob(
                    nodes=[nodes.NodeSpec(name="a")], job_id_template="j", timeout=seconds(60)
                )
            ),
            [["does", "submits", "a", "job", "of", "1", "node"], ["job's", "timeout", "1m"]],
        ),
        (
            a_spec(interval=pb.IntervalTimes(every=seconds(3600), anchor=at(0))),
            [["times", "every", "1h,", "counted", "from", "2026-03-01", "12:00:00.000Z"]],
        ),
        (
            a_spec(cron=pb.CronTimes(expression="@daily", time_zone="Moon/Base")),
            [["times", "@daily", "Moon/Base"], ["next", "2026-03-01", "13:00:00.000Z"]],
        ),
    ],
)
def test_a_schedule_says_what_it_does_and_when(
    spec: pb.ScheduleSpec, lines: list[list[str]], engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["GetSchedule"] = pb.GetScheduleResponse(schedule=a_schedule(spec))

    people = words_of(cli("schedule", "get", "nightly").out)
    programs = cli("schedule", "get", "nightly", "--json")

    assert all(line in people for line in lines)
    assert programs.code == 0


def test_a_job_on_schedule_has_no_instant_as_its_deadline(
    engine: ScriptedEngine, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"deadline": "2026-03-01T12:00:00Z", "nodes": {"a": {}}}')

    ended = cli("schedule", "create", "s", *CRON, "--job", str(file))

    assert (ended.code, engine.requests) == (2, [])
    assert "--job: the deadline of a scheduled job must be a duration" in ended.err


def test_update_changes_what_is_given_and_leaves_the_rest(there: ScriptedEngine, cli: Cli) -> None:
    ended = cli("schedule", "update", "nightly", "--jitter", "0s", "--end-at", "2026-03-01T12:00Z")

    assert ended.code == 0
    assert there.requests[1] == pb.UpdateScheduleRequest(
        namespace="default",
        schedule_id="nightly",
        spec=a_spec(
            jitter=seconds(0),
            end_at=at(0),
            call=pb.ScheduledCall(process_id="p", args=b'{"a":1}'),
        ),
        expected_revision=4,
    )


def test_update_replaces_what_a_run_does_as_a_whole(there: ScriptedEngine, cli: Cli) -> None:
    cli("schedule", "update", "nightly", "--notify", "q")

    spec = there.requests[1].spec
    assert spec.notify == pb.ScheduledNotify(process_id="q")
    assert spec.WhichOneof("target") == "notify"
    assert spec.cron.time_zone == "Europe/Berlin"


def test_a_schedule_is_shown_with_its_runs(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["GetSchedule"] = pb.GetScheduleResponse(
        schedule=a_schedule(),
        next_runs=[pb.NextRun(instant=at(3600), due_at=at(3690))],
        last_runs=[
            pb.ScheduleRun(
                instant=at(0),
                cause=pb.SCHEDULE_RUN_CAUSE_TIME,
                state=pb.SCHEDULE_RUN_STATE_DONE,
                due_at=at(0),
                started_at=at(0),
                ended_at=at(90),
                process_id="p",
                task_id=7,
            ),
            pb.ScheduleRun(
                instant=at(-60),
                cause=pb.SCHEDULE_RUN_CAUSE_BACKFILL,
                state=pb.SCHEDULE_RUN_STATE_REFUSED,
                error=an_error("PROCESS_NOT_FOUND", "gone\naway"),
            ),
            pb.ScheduleRun(
                instant=at(-120),
                cause=pb.SCHEDULE_RUN_CAUSE_TIME,
                state=pb.SCHEDULE_RUN_STATE_MISSED,
                missed_count=2,
                missed_until=at(-60),
            ),
        ],
    )

    ended = cli("schedule", "get", "nightly", "--next", "1", "--last", "3")

    words = words_of(ended.out)
    assert engine.requests == [
        pb.GetScheduleRequest(
            namespace="default", schedule_id="nightly", next_count=1, last_count=3
        )
    ]
    assert ["times", "30", "2", "*", "*", "*", "Europe/Berlin"] in words
    assert ["jitter", "5m"] in words
    assert ["does", "calls", "p"] in words
    assert ["overlap", "queue_one"] in words
    assert ["catch-up", "window", "1d"] in words
    assert ["runs", "12", "started,", "2", "missed"] in words
    wall = ["Sun", "2026-03-01", "14:00:00", "CET"]
    assert ["2026-03-01", "13:00:00.000Z", *wall, "1m30s"] in words
    # The end of a run is detected at the next run or later: no more than that is known.
    assert ["at", "status", "cause", "process", "task", "took", "at", "most", "why"] in words
    noon = ["2026-03-01", "12:00:00.000Z"]
    assert [*noon, "done", "time", "p", "7", "1m30s"] in words
    refused = ["refused", "backfill", "PROCESS_NOT_FOUND:", "gone", "away"]
    assert ["2026-03-01", "11:59:00.000Z", *refused] in words
    missed = ["missed", "time", "2", "missed,", "the", "last", "at", "2026-03-01", "11:59:00.000Z"]
    assert ["2026-03-01", "11:58:00.000Z", *missed] in words


def test_a_schedule_is_a_document_that_names_its_kinds(engine: ScriptedEngine, cli: Cli) -> None:
    job = a_spec(interval=pb.IntervalTimes(every=seconds(60)), job=pb.ScheduledJob())
    job.job.nodes.add(name="a", args=b'{"x": 1.50}')
    job.job.nodes.add(name="b", predecessors=["a"], wants_results=True)
    job.job.timeout.FromSeconds(60)
    engine.answers["GetSchedule"] = pb.GetScheduleResponse(
        schedule=a_schedule(job), last_runs=[pb.ScheduleRun(instant=at(0))]
    )

    document = cli("schedule", "get", "nightly", "--json").document

    spec = document["schedule"]["spec"]
    assert spec["interval"] == {"every_seconds": 60, "anchor": None}
    assert (spec["jitter_seconds"], spec["catch_up_window_seconds"]) == (300, 86_400)
    assert spec["overlap_policy"] == "queue_one"
    assert spec["target"]["job"]["timeout_seconds"] == 60
    assert [*spec["target"]["job"]["graph"]] == ["a", "b"]
    assert spec["target"]["job"]["graph"]["a"]["args"] == {"x": 1.5}
    assert spec["target"]["job"]["graph"]["b"]["after"] == ["a"]
    assert document["last_runs"][0]["instant"] == "2026-03-01T12:00:00+00:00"


def test_schedules_are_listed(engine: ScriptedEngine, cli: Cli) -> None:
    paused = a_schedule(a_spec(job=pb.ScheduledJob()), schedule_id="b", paused=True, note="broken")
    every = a_schedule(
        a_spec(interval=pb.IntervalTimes(every=seconds(5400))), skipped_count=1, refused_count=3
    )
    engine.answers["ListSchedules"] = pb.ListSchedulesResponse(schedules=[every, paused])

    people = cli("schedule", "list")
    document = cli("schedule", "list", "--json").document

    words = words_of(people.out)
    counts = ["12", "started,", "1", "skipped,", "2", "missed,", "3", "refused"]
    instant = ["2026-03-01", "13:00:00.000Z"]
    assert ["nightly", "every", "1h30m", "calls", "p", *instant, *counts] in words
    does = ["submits", "a", "job", "paused", "12", "started,", "2", "missed", "broken"]
    assert ["b", "30", "2", "*", "*", "*", "Europe/Berlin", *does] in words
    assert [it["schedule_id"] for it in document["schedules"]] == ["nightly", "b"]


def test_next_prints_instants_on_the_clock_of_the_zone(engine: ScriptedEngine, cli: Cli) -> None:
    runs = [pb.NextRun(instant=at(day * 86_400), due_at=at(day * 86_400)) for day in (0, 30)]
    engine.answers["GetSchedule"] = pb.GetScheduleResponse(schedule=a_schedule(), next_runs=runs)

    people = cli("schedule", "next", "nightly", "--count", "2")
    document = cli("schedule", "next", "nightly", "--json").document

    words = words_of(people.out)
    assert engine.requests[0].next_count == 2
    assert engine.requests[0].last_count == 0
    assert words[0] == ["at", "in", "Europe/Berlin", "later", "by"]
    assert words[1][-2:] == ["13:00:00", "CET"]
    assert words[2][-2:] == ["14:00:00", "CEST"]
    assert len(document["next_runs"]) == 2


@pytest.mark.parametrize(
    ("paused", "said"), [(True, "the schedule is paused\n"), (False, "no more runs\n")]
)
def test_that_none_is_to_come_is_said(
    paused: bool, said: str, engine: ScriptedEngine, cli: Cli
) -> None:
    engine.answers["GetSchedule"] = pb.GetScheduleResponse(schedule=a_schedule(paused=paused))

    assert cli("schedule", "next", "nightly").out == said


def test_pause_and_resume_leave_a_note(there: ScriptedEngine, cli: Cli) -> None:
    paused = cli("schedule", "pause", "nightly", "--note", "why", "--revision", "4")
    resumed = cli("schedule", "resume", "nightly", "--note", "fixed")

    assert there.requests == [
        pb.PauseScheduleRequest(
            namespace="default", schedule_id="nightly", note="why", expected_revision=4
        ),
        pb.ResumeScheduleRequest(namespace="default", schedule_id="nightly", note="fixed"),
    ]
    assert ["paused", "yes"] in words_of(paused.out)
    assert ["note", "why"] in words_of(paused.out)
    assert "paused" not in resumed.out


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (pb.SCHEDULE_RUN_STATE_RUNNING, 0),
        (pb.SCHEDULE_RUN_STATE_SKIPPED, 0),
        (pb.SCHEDULE_RUN_STATE_REFUSED, 1),
    ],
)
def test_trigger_prints_what_became_of_it(
    state: pb.ScheduleRunState.ValueType, code: int, engine: ScriptedEngine, cli: Cli
) -> None:
    run = pb.ScheduleRun(
        instant=at(0), cause=pb.SCHEDULE_RUN_CAUSE_TRIGGER, state=state, process_id="p"
    )
    engine.answers["TriggerSchedule"] = pb.TriggerScheduleResponse(run=run)

    ended = cli("schedule", "trigger", "s", "--overlap", "allow", "--idempotency-key", "k")

    assert ended.code == code
    assert words_of(ended.out)[1][2:] == [
        pb.ScheduleRunState.Name(state).removeprefix("SCHEDULE_RUN_STATE_").lower(),
        "trigger",
        "p",
    ]
    assert engine.requests == [
        pb.TriggerScheduleRequest(
            namespace="default",
            schedule_id="s",
            overlap_policy=pb.OVERLAP_POLICY_ALLOW,
            idempotency_key="k",
        )
    ]


def test_backfill_tells_how_many_are_queued(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["BackfillSchedule"] = pb.BackfillScheduleResponse(
        instant_count=24, queued_count=20
    )

    ended = cli(
        *("schedule", "backfill", "s", "--since", "2026-03-01T12:00:00Z"),
        *("--until", "2026-03-01T13:00+00:00", "--overlap", "queue_one"),
    )

    assert ended.out == "queued 20 runs of 24 instants\n"
    assert engine.requests == [
        pb.BackfillScheduleRequest(
            namespace="default",
            schedule_id="s",
            since=at(0),
            until=at(3600),
            overlap_policy=pb.OVERLAP_POLICY_QUEUE_ONE,
        )
    ]


def test_a_schedule_is_deleted(engine: ScriptedEngine, cli: Cli) -> None:
    ended = cli("schedule", "delete", "nightly", "--revision", "4")

    assert ended.out == "deleted schedule nightly\n"
    assert engine.requests[0].expected_revision == 4
