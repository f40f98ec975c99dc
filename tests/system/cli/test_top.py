"""The command top: one look for programs and people, and a live view on a terminal."""

import asyncio
import contextlib
import json
import os
import sys
from asyncio import StreamReader
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from progressor.cli.main import main
from progressor.v1 import replica_service_pb2 as pb
from tests.support.api.scripted_engine import Cli, Refusal, ScriptedEngine
from tests.support.api.terminal import ENTER_SCREEN, INTERRUPT, LEAVE_SCREEN, SHOW_CURSOR, Terminal
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import Env, Replica, open_env, running_replica

OFTEN = ("--interval", "0.2s")


class TestOneLook:
    def test_is_a_screen_for_people(self, engine: ScriptedEngine, cli: Cli) -> None:
        replica = pb.ReplicaActivity(
            replica_id=4, name="host-1", version="1.2.3", state=pb.REPLICA_STATE_SILENT
        )
        queue = pb.NamespaceQueue(namespace="orders", due_count=3)
        queue.due_age.FromMilliseconds(1500)
        answer = pb.GetActivityResponse(replicas=[replica], queues=[queue], exact_below=400)
        answer.queues_age.FromMilliseconds(0)
        engine.answers["GetActivity"] = answer

        ended = cli("top", "--once", *OFTEN)

        lines = ended.out.splitlines()
        assert ended.code == 0
        assert len(engine.requests) == 2
        assert lines[0].startswith(f"progressor at {engine.address}")
        assert lines[2].startswith("due 3, the oldest for 1.5 s")
        assert lines[5].split()[:1] == ["orders"]
        assert lines[8].split()[:3] == ["host-1", "4", "silent"]

    def test_is_a_document_for_programs(self, engine: ScriptedEngine, cli: Cli) -> None:
        engine.answers["GetActivity"] = pb.GetActivityResponse(uncounted_namespace_count=5)

        document = cli("top", "--once", "--json", *OFTEN).document

        assert document.keys() == {
            "read_at", "totals", "namespaces", "replicas", "queues_age",
            "uncounted_namespace_count", "exact_below", "unavailable_cells",
        }  # fmt: skip
        assert document["totals"]["serving_count"] == 0
        assert document["uncounted_namespace_count"] == 5

    def test_is_taken_again_while_a_replica_has_not_beaten(
        self, engine: ScriptedEngine, cli: Cli
    ) -> None:
        serving = pb.ReplicaActivity(replica_id=4, state=pb.REPLICA_STATE_SERVING)
        engine.answers["GetActivity"] = pb.GetActivityResponse(replicas=[serving])

        document = cli("top", "--once", "--json", "--interval", "0.1s").document

        assert document["totals"]["pace"]["settled_per_second"] is None
        assert len(engine.requests) > 2

    def test_of_nobody_ends_as_any_command_does(self, capfd: pytest.CaptureFixture[str]) -> None:
        for once in ((), ("--once",)):
            code = main(["top", *once, "--json", "--address", "unix:/nonexistent/engine.sock"])

            assert code == 5
            assert json.loads(capfd.readouterr().err)["error"]["reason"] == "ENGINE_UNAVAILABLE"

    def test_of_a_release_before_this_command_is_refused(
        self, engine: ScriptedEngine, cli: Cli
    ) -> None:
        engine.answers["GetActivity"] = Refusal(
            code=grpc.StatusCode.UNIMPLEMENTED, reason="", domain="", message="no such method"
        )

        assert cli("top", "--once").code == 1


@pytest_asyncio.fixture
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, {"replica.name": "first"}) as running:
        yield running


@pytest_asyncio.fixture
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, one_at_a_time=False) as opened:
        yield opened


async def load(env: Env, address: str, process_id: str) -> None:
    """Call a process again and again; ends only by cancellation."""
    async with env.client_at(address) as client:
        while True:
            await client.call(process_id)


@contextlib.asynccontextmanager
async def top(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, StreamReader]]:
    """Run `progressor top`, and return the process and what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "top", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PROGRESSOR_CONFIG": ""},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield process, process.stdout


async def look_of(*arguments: str) -> Any:
    """Return the document that `progressor top --once` prints."""
    async with top("--once", "--json", *arguments) as (process, out):
        document = json.loads(await out.read())
        assert await process.wait() == 0
    return document


async def test_two_replicas_at_work_are_seen_by_asking_one(env: Env, database: str) -> None:
    await env.running("p")
    await env.running("q")
    async with (
        running_replica(database, {"replica.name": "second"}) as second,
        asyncio.TaskGroup() as group,
    ):
        addresses = {"p": env.replica.address, "q": second.address}
        working = [
            group.create_task(load(env, address, process_id))
            for process_id, address in addresses.items()
        ]
        await env.settled("p", 3)
        seen = [await look_of("--address", address) for address in addresses.values()]
        for task in working:
            task.cancel()

    for document in seen:
        (namespace,) = [it for it in document["namespaces"] if it["namespace"] == env.namespace]
        replicas = {it["name"]: it for it in document["replicas"]}
        rates = [replicas[it]["pace"]["settled_per_second"] for it in ("first", "second")]
        assert min(rates) > 0
        assert namespace["pace"]["settled_per_second"] == pytest.approx(sum(rates))
        assert namespace["pace"]["mean_processor_time_seconds"] > 0
        assert namespace["pace"]["failed_per_second"] == 0
        assert namespace["worker_count"] == 2000
        assert document["totals"]["serving_count"] == 2


async def test_a_pipe_gets_one_look_after_the_other_until_it_is_closed(replica: Replica) -> None:
    async with top(*OFTEN, "--address", replica.address) as (process, out):
        heads = 0
        while heads < 3:
            heads += (await out.readline()).startswith(b"progressor at ")
        out._transport.close()  # type: ignore[attr-defined]  # no other way
        _, said = await process.communicate()

    assert (process.returncode, said) == (1, b"")


async def test_json_in_a_pipe_is_a_line_for_each_look_and_tells_that_the_engine_is_away(
    database: str, tmp_path: Path
) -> None:
    async with (
        running_process(database, tmp_path) as mortal,
        top("--json", *OFTEN, "--address", mortal.address) as (process, out),
    ):
        looks = [json.loads(await out.readline()) for _ in range(2)]
        mortal.kill()
        look = looks[0]
        while "unavailable" not in look:
            look = json.loads(await out.readline())
        process.terminate()
        await process.communicate()

    assert process.returncode == 0
    assert [it["totals"]["serving_count"] for it in looks] == [1, 1]
    assert look["unavailable"]["reason"] == "ENGINE_UNAVAILABLE"
    assert look["unavailable"]["lasting_seconds"] > 0
    assert look["unavailable"]["since"] >= looks[0]["read_at"]


class TestALiveView:
    async def test_survives_a_restart_and_gives_the_terminal_back(
        self, env: Env, tmp_path: Path
    ) -> None:
        dsn, name = env.replica.engine.dsn, {"replica.name": "mortal"}
        async with (
            running_process(dsn, tmp_path, name) as mortal,
            Terminal.running("top", *OFTEN, "--address", mortal.address) as terminal,
        ):
            before = terminal.settings
            await terminal.draws(lambda frame: "2 serving" in frame)
            alive = len(terminal.frames)
            mortal.kill()
            away = await terminal.draws(lambda it: "engine unavailable since" in it, since=alive)
            gone = len(terminal.frames)
            async with running_process(dsn, tmp_path, name):
                await terminal.draws(lambda it: "engine unavailable since" not in it, since=gone)
                terminal.type(INTERRUPT)
                code = await terminal.ended()
            await terminal.shows(LEAVE_SCREEN)
            after = terminal.settings

        assert code == 0
        # The last that was told stands below it.
        assert "mortal" in away
        assert terminal.drawn.startswith(ENTER_SCREEN)
        assert SHOW_CURSOR in terminal.drawn
        assert after == before
        assert "Traceback" not in terminal.drawn

    async def test_shows_no_key_and_ends_by_q(self, replica: Replica) -> None:
        async with Terminal.running("top", *OFTEN, "--address", replica.address) as terminal:
            await terminal.draws(lambda frame: "1 serving" in frame)
            terminal.type("xyz")
            terminal.type("q")
            code = await terminal.ended()
            await terminal.shows(LEAVE_SCREEN)

        assert code == 0
        assert "xyz" not in terminal.drawn

    async def test_follows_the_size_of_the_terminal(self, replica: Replica) -> None:
        once = ("--interval", "1h")
        async with Terminal.running("top", *once, "--address", replica.address) as terminal:
            await terminal.shows("1 serving")
            first = len(terminal.frames)
            terminal.resize(60, 8)
            await terminal.fills(8)
            # A frame is whole once the next one begins.
            terminal.resize(100, 20)
            frame = await terminal.draws(lambda frame: frame.count("\n") == 7, since=first)

        lines = frame.split("\n")
        assert len(lines) == 8
        assert {len(line) for line in lines} == {60}
        assert lines[1].startswith("steps")
