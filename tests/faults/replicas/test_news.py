"""What one replica has to tell another, lost on the way: the caller is answered all the same."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.support.engine.replica import Replica, running_replica
from tests.support.faults.faults import FAULTS
from tests.support.faults.ground import QUICK, Ground, open_ground
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTIFY = "pg_notify("
LOSSES = ("cut before", "cut after", "backend terminated", "disk full", "stalled before")
FETCH = "LEFT JOIN progressor.replies"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind(proxy: Proxy, quick_news: None) -> AsyncIterator[Replica]:  # noqa: ARG001
    async with running_replica(proxy.conninfo, QUICK) as replica:
        yield replica
        proxy.restore()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def past(database: str, quick_news: None) -> AsyncIterator[Replica]:  # noqa: ARG001
    """Return a replica past the proxy, which no fault touches."""
    async with running_replica(database) as replica:
        yield replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(
    proxy: Proxy, behind: Replica, observer: psycopg.Connection[Any]
) -> AsyncIterator[Ground]:
    async with open_ground(proxy, behind, observer) as ground:
        yield ground


@pytest.mark.parametrize("fault", LOSSES)
async def test_a_caller_elsewhere_is_answered_although_nobody_told_its_replica(
    ground: Ground, past: Replica, fault: str
) -> None:
    process_id, env = ground.fresh(), ground.env
    hang, _ = await env.busy(process_id)
    async with env.client_at(past.address) as elsewhere, asyncio.TaskGroup() as group:
        waiting = group.create_task(elsewhere.call(process_id, b"2"))
        await past.points.wait("admitted", key=env.key(process_id))
        async with ground.under(FAULTS[fault], NOTIFY):
            hang.released.set()
    await ground.at_rest()

    assert waiting.result().response == b"2"
    assert ground.events(process_id) == [b"busy", b"2"]
    ground.judge()


@pytest.mark.parametrize("fault", LOSSES)
async def test_a_caller_here_is_answered_although_the_answer_could_not_be_read_at_once(
    ground: Ground, past: Replica, fault: str
) -> None:
    process_id, env = ground.fresh(), ground.env
    await env.running(process_id, hang := Hang(), Answer())
    async with env.client_at(past.address) as elsewhere, asyncio.TaskGroup() as group:
        await elsewhere.call(process_id, b"busy", accept_only=True)
        await env.asked(process_id, 2)
        waiting = group.create_task(ground.client.call(process_id, b"2"))
        await env.points.wait("admitted", 2, key=env.key(process_id))
        async with ground.under(FAULTS[fault], FETCH):
            hang.released.set()
    await ground.at_rest()

    assert waiting.result().response == b"2"
    assert ground.events(process_id) == [b"busy", b"2"]
    ground.judge()
