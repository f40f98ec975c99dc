"""Bulk operations on a terminal: question, progress, and Ctrl-C, which leaves them running."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor.cli.output import ExitCode
from progressor.domain.views.bulk import OPERATIONS
from progressor.runtime.step import bulk_steps
from progressor.sdk import BulkKind, BulkOperation, BulkState
from tests.support.api.terminal import INTERRUPT, SHOW_CURSOR, Terminal
from tests.support.engine.replica import Env, Replica, answering, broken, open_env, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "Start? [y/N] "
END = "\x04"
"""What a terminal takes for the end of the input."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, one_at_a_time=False) as found:
        for number in range(3):
            await found.broken(f"p{number}", answering())
        yield found


def retry(env: Env, *options: str) -> tuple[str, ...]:
    operation = ("--id", f"retry-{env.namespace}", "--why", "INC-1")
    where = ("-n", env.namespace, "--address", env.replica.address)
    return ("bulk", "retry", *operation, *where, *options)


async def operations(env: Env) -> list[BulkOperation]:
    found = [it async for it in env.client.bulk.list()]
    return [it for it in found if it.operation_id == f"retry-{env.namespace}"]


@pytest.mark.parametrize("answer", ["\n", "n\n", END, INTERRUPT])
async def test_without_a_yes_nothing_is_started(env: Env, answer: str) -> None:
    async with Terminal.running(*retry(env)) as terminal:
        await terminal.shows(QUESTION)
        terminal.type(answer)
        code = await terminal.ended()

    assert f"retry in {env.namespace}, without a filter: 3 processes match" in terminal.drawn
    assert terminal.drawn.endswith("\r\nNothing was done.\r\n")
    assert code == (ExitCode.INTERRUPTED if answer == INTERRUPT else ExitCode.FAILED)
    assert "Traceback" not in terminal.drawn
    assert await operations(env) == []


async def test_after_a_yes_the_progress_is_drawn_to_the_end(env: Env) -> None:
    async with Terminal.running(*retry(env)) as terminal:
        await terminal.shows(QUESTION)
        terminal.type("y\n")
        code = await terminal.ended()
        await terminal.shows("3/3")
        await terminal.shows(SHOW_CURSOR)

    [bulk] = await operations(env)
    assert code == ExitCode.DONE
    assert re.search(r"state +done", terminal.words)
    assert (bulk.state, bulk.done_count, bulk.reason) == (BulkState.DONE, 3, "INC-1")


async def test_a_pause_of_the_operations_is_said_beside_the_bar(env: Env) -> None:
    await operations_exist(env)
    await env.client.namespaces.pause(OPERATIONS, reason="restore")
    try:
        async with Terminal.running(*retry(env, "--yes")) as terminal:
            await terminal.shows("all are paused: restore")
            await env.client.namespaces.resume(OPERATIONS)
            code = await terminal.ended()
            await terminal.shows(SHOW_CURSOR)
    finally:
        await env.client.namespaces.resume(OPERATIONS)

    assert code == ExitCode.DONE
    assert f"progressor namespace resume {OPERATIONS}" in terminal.words


async def operations_exist(env: Env) -> None:
    """Let the engine create the namespace of operations."""
    await env.client.bulk.start(BulkKind.RETRY, id_prefix="none")


async def test_processes_that_break_again_are_counted_at_the_end(env: Env) -> None:
    await env.broken("again", broken())
    async with Terminal.running(*retry(env, "--yes")) as terminal:
        code = await terminal.ended()
        await terminal.shows(SHOW_CURSOR)

    assert code == ExitCode.FAILED
    assert re.search(r"requested +4", terminal.words)
    assert re.search(r"in error now +1", terminal.words)
    assert f"progressor failures -n {env.namespace}" in terminal.words


async def test_ctrl_c_leaves_it_running_and_says_how_to_go_on(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, apply = asyncio.Event(), bulk_steps.BulkSteps._apply

    async def held_up(self: bulk_steps.BulkSteps, bulk: Any) -> tuple[int, float]:
        await go.wait()
        return await apply(self, bulk)

    monkeypatch.setattr(bulk_steps.BulkSteps, "_apply", held_up)
    async with Terminal.running(*retry(env, "--yes")) as terminal:
        await terminal.shows("0/3")
        terminal.type(INTERRUPT)
        code = await terminal.ended()
        await terminal.shows(SHOW_CURSOR)
    name = f"retry-{env.namespace}"
    running = await env.client.bulk.get(name)
    go.set()
    await env.client.result(name, namespace=OPERATIONS)

    assert code == ExitCode.INTERRUPTED
    assert f"operation {name} continues" in terminal.drawn
    assert f"progressor bulk watch {name}" in terminal.drawn
    assert f"progressor bulk stop {name}" in terminal.drawn
    assert "Traceback" not in terminal.drawn
    assert not running.has_ended
    assert (await env.client.bulk.get(name)).done_count == 3
