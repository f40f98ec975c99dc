"""What tests read of an engine, once or until it is as expected.

Facts of replicas reach a Get a second late.
"""

import asyncio
from collections.abc import Callable

import pytest

from progressor.cli.main import main
from progressor.sdk import Client, Process, ReplicaState, TaskTrace, Wait, WaitCause
from tests.support.engine.points import eventually
from tests.support.engine.replica import Env, Replica

_PAUSE_SECONDS = 0.05


async def process_of(env: Env) -> Process:
    return (await env.client.get("p")).process


async def tasks_of(env: Env) -> tuple[TaskTrace, ...]:
    return (await env.client.trace("p")).tasks


def types_asked(env: Env) -> list[int]:
    return [request.task.type for request in env.asked_for("p")]


async def in_line(env: Env, *args: bytes) -> list[int]:
    """Put calls behind the step in hand, in this order; return their task ids."""
    accepted = [await env.client.call("p", each, accept_only=True) for each in args]
    return [each.task_id for each in accepted]


async def first_wait(
    client: Client,
    process_id: str,
    cause: WaitCause,
    satisfied: Callable[[Wait], bool] = lambda _wait: True,
) -> Wait:
    """Wait until the first wait of a process has this cause and satisfies, and return it."""

    async def read() -> Wait | None:
        waits = (await client.get(process_id)).waits
        found = waits and waits[0].cause is cause and satisfied(waits[0])
        return waits[0] if found else None

    wait: Wait = await eventually(read, pause=_PAUSE_SECONDS)
    return wait


async def named(
    env: Env,
    process_id: str,
    cause: WaitCause,
    satisfied: Callable[[Wait], bool] = lambda _wait: True,
) -> Wait:
    """Wait until Get names a cause, see that List names the same, and return it."""
    wait = await first_wait(env.client, process_id, cause, satisfied)
    listed = {process.process_id: process.first_wait async for process in env.client.list()}[
        process_id
    ]
    assert listed is not None, f"List says that {process_id} waits for nothing"
    assert (listed.task_id, listed.cause) == (wait.task_id, wait.cause)
    return wait


async def said(env: Env, process_id: str, capfd: pytest.CaptureFixture[str]) -> list[str]:
    return await explained(env.replica, env.namespace, process_id, capfd)


async def explained(
    replica: Replica, namespace: str, process_id: str, capfd: pytest.CaptureFixture[str]
) -> list[str]:
    """Return the lines that `progressor why` prints."""
    capfd.readouterr()
    arguments = ["why", "-n", namespace, process_id, "--address", replica.address]
    assert await asyncio.to_thread(main, arguments) == 0
    return capfd.readouterr().out.splitlines()


async def all_silent(client: Client) -> None:
    async def are_silent() -> bool:
        replicas = [replica async for replica in client.replicas.list()]
        return all(replica.state is ReplicaState.SILENT for replica in replicas)

    await eventually(are_silent, pause=_PAUSE_SECONDS)
