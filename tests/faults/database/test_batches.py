"""Batches that follow each other on one connection, and faults that hit one of them or both."""

import asyncio
import datetime as dt
import functools
import random
from collections.abc import Callable, Mapping

import pytest

from progressor.sdk import RetryPolicy
from tests.support.engine.replica import answering, timer
from tests.support.faults.env import FaultEnv, insist
from tests.support.faults.faults import FAULTS, Fault, refused
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

CROWD = 60
STEPS = 12
SETTLE = '"settle_tasks"('
SETTINGS = {"replica.lease_timeout_seconds": "30"}
"""No lease is lost: a step that is asked for twice would take two answers off its script."""

RETRY_POLICY = RetryPolicy(initial_interval=dt.timedelta(milliseconds=10), attempts_max=1000)

HARDER: Mapping[str, Callable[..., Fault]] = {
    **FAULTS,
    "an internal error": functools.partial(refused, code="XX000"),
}


def crowd(env: FaultEnv, group: asyncio.TaskGroup) -> list[str]:
    """Start processes that drive themselves, and insist on it; return their ids."""
    names = [env.fresh() for _ in range(CROWD)]
    for name in names:
        env.processor.on_process(
            name, *[answering(b"tick", set_timer=timer())] * (STEPS - 1), answering(b"last")
        )
        group.create_task(insist(env.client.start, name, accept_only=True, idempotency_key="k"))
    return names


async def judge(env: FaultEnv, names: list[str], events: list[bytes]) -> None:
    """Assert that once nothing is in hand these processes have these events."""
    await env.at_rest()
    assert [env.events(name) for name in names] == [events] * len(names)
    env.judge()


@pytest.mark.matrix
@pytest.mark.parametrize("fault", HARDER)
async def test_a_crowd_that_drives_itself_goes_through_faults_of_its_batches(
    env: FaultEnv, fault: str, chance: random.Random
) -> None:
    async with asyncio.TaskGroup() as group:
        names = crowd(env, group)
        # Wherever it strikes, one batch is before it or behind it on the connection.
        number = chance.randint(1, 3)
        async with env.under(SETTLE, functools.partial(HARDER[fault], number=number)):
            pass

    await judge(env, names, [b"tick"] * (STEPS - 1) + [b"last"])


async def test_a_crowd_that_drives_itself_goes_on_though_all_connections_break_again_and_again(
    env: FaultEnv, chance: random.Random
) -> None:
    async with asyncio.TaskGroup() as group:
        names = crowd(env, group)
        for _ in range(5):
            settled = env.points.count("settled")
            await env.points.wait("settled", settled + chance.randint(1, CROWD))
            env.proxy.cut()

    await judge(env, names, [b"tick"] * (STEPS - 1) + [b"last"])


async def test_two_batches_that_are_refused_at_once_keep_apart(env: FaultEnv) -> None:
    names = [f"p{number}" for number in range(CROWD)]
    hang = Hang()
    for name in names:
        env.processor.on_process(name, hang, Answer())
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(env.client.start(name, b"1", accept_only=True))
    await env.processor.received(CROWD, seconds=30)
    # Every other step is stopped in the middle.
    for name in names[::2]:
        await env.client.remove(name)
    for _ in range(2):
        env.proxy.arm(refused(SETTLE, "P0001"))
    hang.released.set()

    # The first answer may be a batch of its own; what is refused alone breaks its process.
    await judge(env, names[3::2], [b"1"])
