"""Waiting for an engine to name a cause: facts of replicas reach a Get a second late."""

import asyncio
from collections.abc import Callable

import pytest

from progressor.cli.main import main
from progressor.sdk import Client, ReplicaState, Wait, WaitCause
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Env

_PAUSE_SECONDS = 0.05


async def first_wait(
    client: Client,
    process_id: str,
    cause: WaitCause,
    satisfied: Callable[[Wait], bool] = lambda _wait: True,
) -> Wait:
    """Wait until the first wait of a process has this cause and satisfies, and return it.

    Raises:
        TimeoutError: It had not within 30 s.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            waits = (await client.get(process_id)).waits
            if waits and waits[0].cause is cause and satisfied(waits[0]):
                return waits[0]
            await asyncio.sleep(_PAUSE_SECONDS)


async def named(
    env: Env,
    process_id: str,
    cause: WaitCause,
    satisfied: Callable[[Wait], bool] = lambda _wait: True,
) -> Wait:
    """Wait until Get names a cause, see that List names the same, and return it."""
    wait = await first_wait(env.client, process_id, cause, satisfied)
    listed = {it.process_id: it.first_wait async for it in env.client.list()}[process_id]
    assert listed is not None, f"List says that {process_id} waits for nothing"
    assert (listed.task_id, listed.cause) == (wait.task_id, wait.cause)
    return wait


async def said(env: Env, process_id: str, capfd: pytest.CaptureFixture[str]) -> list[str]:
    capfd.readouterr()
    arguments = ["why", "-n", env.namespace, process_id, "--address", env.replica.address]
    assert await asyncio.to_thread(main, arguments) == 0
    return capfd.readouterr().out.splitlines()


async def all_silent(client: Client) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await _are_silent(client):
                return
            await asyncio.sleep(_PAUSE_SECONDS)


async def _are_silent(client: Client) -> bool:
    replicas = [it async for it in client.replicas.list()]
    return all(it.state is ReplicaState.SILENT for it in replicas)
