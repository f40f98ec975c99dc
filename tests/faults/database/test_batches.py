"""Batches that follow each other on one connection, and faults that hit one of them or both."""

import asyncio
import datetime as dt
import functools
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.sdk import RetryPolicy
from tests.support.engine.replica import Replica, answering, running_replica, timer
from tests.support.faults.faults import FAULTS, Fault, refused
from tests.support.faults.ground import ATTEMPT_SECONDS, QUICK, Ground, insisted, open_ground
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

CROWD = 60
STEPS = 12
SETTLE = '"settle_tasks"('
SETTINGS = {**QUICK, "replica.lease_timeout_seconds": "30"}
"""No lease is lost: a step that is asked for twice would take two answers off its script."""

PATIENT = RetryPolicy(initial_interval=dt.timedelta(milliseconds=10), attempts_max=1000)

HARDER: Mapping[str, Callable[..., Fault]] = {
    **FAULTS,
    "an internal error": functools.partial(refused, code="XX000"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(proxy: Proxy, quick_news: None) -> AsyncIterator[Replica]:  # noqa: ARG001
    async with running_replica(proxy.conninfo, SETTINGS) as replica:
        yield replica
        proxy.restore()


@pytest_asyncio.fixture(loop_scope="module")
async def ground(
    proxy: Proxy, replica: Replica, observer: psycopg.Connection[Any]
) -> AsyncIterator[Ground]:
    async with open_ground(proxy, replica, observer, retry_policy=PATIENT) as ground:
        yield ground


def crowd(ground: Ground) -> list[str]:
    """Return the ids of processes that will drive themselves once they are started."""
    names = [ground.fresh() for _ in range(CROWD)]
    for name in names:
        ground.env.processor.on_process(
            name, *[answering(b"tick", set_timer=timer())] * (STEPS - 1), answering(b"last")
        )
    return names


async def begun(ground: Ground, name: str) -> None:
    """Start a process, and insist on it."""
    await insisted(
        lambda: ground.client.start(
            name, accept_only=True, idempotency_key="k", timeout=ATTEMPT_SECONDS
        )
    )


@pytest.mark.matrix
@pytest.mark.parametrize("fault", HARDER)
async def test_a_crowd_that_drives_itself_goes_through_faults_of_its_batches(
    ground: Ground, fault: str, chance: random.Random
) -> None:
    names = crowd(ground)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(begun(ground, name))
        # Wherever it strikes, one batch is before it or behind it on the connection.
        number = chance.randint(1, 3)
        async with ground.under(functools.partial(HARDER[fault], number=number), SETTLE):
            pass
    await ground.at_rest()

    for name in names:
        assert ground.events(name) == [b"tick"] * (STEPS - 1) + [b"last"]
    ground.judge()


async def test_a_crowd_that_drives_itself_goes_on_though_all_connections_break_again_and_again(
    ground: Ground, chance: random.Random
) -> None:
    points, names = ground.env.points, crowd(ground)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(begun(ground, name))
        for _ in range(5):
            settled = points.count("settled")
            await points.wait("settled", settled + chance.randint(1, CROWD))
            ground.proxy.cut()
    await ground.at_rest()

    for name in names:
        assert ground.events(name) == [b"tick"] * (STEPS - 1) + [b"last"]
    ground.judge()


async def test_two_batches_that_are_refused_at_once_keep_apart(ground: Ground) -> None:
    names = [f"p{number}" for number in range(CROWD)]
    hang = Hang()
    for name in names:
        ground.env.processor.on_process(name, hang, Answer())
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(ground.client.start(name, b"1", accept_only=True))
    await ground.env.processor.received(CROWD, seconds=30)
    # Of every other one the lease is lost, which takes a look of its own where it is written again.
    for name in names[::2]:
        await ground.client.remove(name)
    for _ in range(2):
        ground.proxy.arm(refused(SETTLE, "P0001"))
    hang.released.set()
    await ground.at_rest()

    for name in names[1::2]:
        assert ground.events(name) == [b"1"]
    ground.judge()
