"""Commands about jobs against a whole engine, from the file to how they end."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from progressor.cli.main import main
from progressor.v1 import types_pb2 as types
from progressor.v1.processor_service_pb2 import Complete
from tests.support.api.scripted_engine import Ended
from tests.support.api.terminal import INTERRUPT, SHOW_CURSOR, Terminal
from tests.support.engine.replica import Env, answering, broken, response, timer
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = answering(complete=Complete(result=b'{"n": 1}'))
FILE = """
[nodes.a]
args = { x = 1 }
[nodes.b]
after = ["a"]
[nodes.c]
after = ["b"]
[nodes.d]
"""

Run = Callable[..., Awaitable[Ended]]


@pytest.fixture
def run(env: Env, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command about the environment's namespace beside the engine."""

    async def run_beside(*arguments: str) -> Ended:
        where = ["--address", env.replica.address, "--namespace", env.namespace]
        capfd.readouterr()
        code = await asyncio.to_thread(main, [*arguments, *where])
        captured = capfd.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    return run_beside


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a file of a job of four nodes, of which c waits for b, and b for a."""
    path = tmp_path / "job.toml"
    path.write_text(FILE)
    return str(path)


async def test_a_job_of_a_file_runs_to_its_end(env: Env, run: Run, file: str) -> None:
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)

    submitted = await run("job", "submit", file, "--id", "job", "--wait")
    told = await run("job", "get", "job", "--json")
    people = await run("job", "get", "job")
    listed = await run("job", "list", "--state", "done", "--json")

    assert (submitted.code, submitted.err) == (0, "")
    assert "job job is done after " in submitted.out.splitlines()[-1]
    assert [it["state"] for it in told.document["nodes"]] == ["done"] * 4
    assert told.document["nodes"][0]["args"] == {"x": 1}
    assert told.document["nodes"][0]["result"] == {"n": 1}
    assert "✓ a ─── ✓ b ─── ✓ c" in people.out.splitlines()
    assert [it["job_id"] for it in listed.document["jobs"]] == ["job"]


async def test_a_failed_job_is_retried_and_watched(env: Env, run: Run, file: str) -> None:
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)
    env.processor.on_process("job/b", broken("no\ndisk"), DONE)

    failed = await run("job", "submit", file, "--id", "job", "--wait")
    people = await run("job", "get", "job")
    retried = await run("job", "retry", "job")
    watched = await run("job", "watch", "job", "--json")

    assert failed.code == 8
    assert any("✗ failed b" in line and "no disk" in line for line in failed.out.splitlines())
    assert "✓ a ─── ✗ b ─── ↷ c" in people.out.splitlines()
    assert "because of b" in people.out
    assert (retried.code, retried.out) == (0, "retrying job job from 1 node: b\n")
    assert watched.code == 0
    assert json.loads(watched.out.splitlines()[-1])["job"]["state"] == "done"


async def test_a_job_that_is_cancelled_is_not_retried(env: Env, run: Run, file: str) -> None:
    env.processor.on_type(types.TASK_TYPE_INIT, answering())  # none of them finishes

    submitted = await run("job", "submit", file, "--id", "job", "--json")
    await env.asked("job/a")
    cancelled = await run("job", "cancel", "job", "--reason", "not today")
    again = await run("job", "cancel", "job")
    retried = await run("job", "retry", "job")
    watched = await run("job", "watch", "job")

    assert submitted.document["job_id"] == "job"
    assert (cancelled.code, again.code, retried.code, watched.code) == (0, 4, 4, 9)


async def test_a_node_that_is_cancelled_says_why_once(env: Env, run: Run, file: str) -> None:
    hang = Hang(response=answering(set_timer=timer(3600)).response)
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)
    env.processor.on_process("job/b", hang)

    await run("job", "submit", file, "--id", "job")
    await env.asked("job/b")
    await run("job", "cancel", "job", "--reason", "not today")
    hang.released.set()
    await env.settled("job/b")  # and its node with it
    people = await run("job", "get", "job")
    nodes = {it.name: it for it in (await env.client.jobs.get("job")).nodes}

    assert re.findall(r"JOB_CANCELLED.*", people.out) == ["JOB_CANCELLED: not today"]
    error = nodes["b"].error
    assert error is not None
    assert (error.reason, error.message) == ("JOB_CANCELLED", "not today")
    process = (await env.client.get("job/b")).process
    assert process.detail == "JOB_CANCELLED: not today"


async def test_get_and_why_tell_of_a_job(env: Env, run: Run, file: str) -> None:
    hang = Hang(response=response(complete=Complete()))
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)
    env.processor.on_process("job/b", hang)

    await run("job", "submit", file, "--id", "job")
    await env.asked("job/b")
    await env.settled("job/d")
    why = await run("why", "job")
    leader = await run("get", "job")
    follower = await run("get", "job/b", "--json")
    hang.released.set()
    watched = await run("job", "watch", "job")

    assert watched.code == 0
    assert why.out == "The process leads a job, and waits for 2 of the 4 nodes of it.\n"
    words = "leads a job; 2 of 4 nodes have not ended"
    assert words in " ".join(leader.out.split())
    assert follower.document["job_role"]["followed"] == {
        "namespace": env.namespace,
        "job_id": "job",
        "node": "b",
    }


async def test_a_watch_on_a_terminal_can_be_left(env: Env, run: Run, file: str) -> None:
    hang = Hang(response=response(complete=Complete()))
    env.processor.on_type(types.TASK_TYPE_INIT, DONE)
    env.processor.on_process("job/b", hang)
    where = ("--address", env.replica.address, "--namespace", env.namespace)

    await run("job", "submit", file, "--id", "job")
    async with Terminal.running("job", "watch", "job", *where) as terminal:
        await terminal.shows("●\x1b[0m b")
        terminal.type(INTERRUPT)
        code = await terminal.ended()
    hang.released.set()
    watched = await run("job", "watch", "job")

    assert code == 130
    assert SHOW_CURSOR in terminal.drawn
    assert watched.code == 0


async def test_what_only_the_engine_refuses_is_told_with_its_place(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"nodes": {"a": {}, "b": {"after": ["a"], "retry": {"attempts_max": -1}}}}')

    ended = await run("job", "submit", str(path), "--id", "job")

    assert ended.code == 2
    assert f"{path}: nodes.b.retry.attempts_max: " in ended.err
