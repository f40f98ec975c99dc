"""Commands about schedules against a whole engine."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from progressor.cli.main import main
from progressor.cli.output.failures import ExitCode
from progressor.v1 import types_pb2 as types
from progressor.v1.processor_service_pb2 import Complete
from tests.support.api.scripted_engine import Ended
from tests.support.engine.replica import Env, answering

pytestmark = pytest.mark.asyncio(loop_scope="module")

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

    assert [it.code for it in (created, paused, resumed, deleted, gone)] == [0, 0, 0, 0, 3]
    assert updated.document["spec"]["jitter_seconds"] == 300
    assert triggered.document["process_id"].startswith("s/")
    assert got.document["schedule"]["paused"]
    assert got.document["schedule"]["note"] == "why"
    assert got.document["schedule"]["started_count"] == 1
    assert got.document["last_runs"][0]["cause"] == "trigger"
    years = [it["instant"][4:16] for it in coming.document["next_runs"]]
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
