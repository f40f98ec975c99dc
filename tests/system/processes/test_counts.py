"""How many processes match a filter: through the engine, and as many as are listed."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from progressor.sdk import (
    BulkKind,
    ProcessCount,
    ProcessCounts,
    ProcessStatus,
    SyncClient,
)
from tests.support.engine.replica import Env, answering, open_env, refusal, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

INIT, RUNNING, ERROR, FINISHED = (
    ProcessStatus.INIT,
    ProcessStatus.RUNNING,
    ProcessStatus.ERROR,
    ProcessStatus.FINISHED,
)
LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(database: str) -> AsyncIterator[Env]:
    """Have p0 and p1, broken, p2 and q, which run, and f, which has finished."""
    async with running_replica(database) as replica, open_env(replica) as found:
        for name in ("p0", "p1"):
            await found.broken(name)
        for name in ("p2", "q"):
            await found.running(name, answering())
        await found.finished("f")
        await found.client.start("m", metadata={"city": "Oslo"})
        yield found


@pytest.mark.parametrize(
    ("filter_", "count"),
    [
        ({"statuses": [ERROR, RUNNING]}, 5),
        ({"statuses": [INIT]}, 0),
        ({"id_prefix": "p"}, 3),
        ({"id_prefix": "p", "statuses": [RUNNING]}, 1),
        ({"failure_reason": "BROKEN"}, 2),
        ({"failure_reason": "BROKE"}, 0),
        ({"failure_id": "0123456789ab"}, 0),
        ({"broken_to": LATER}, 2),
        ({"broken_from": LATER}, 0),
        ({"created_to": LATER}, 6),
        ({"created_from": LATER}, 0),
        ({"metadata": {"city": "Oslo"}}, 1),
        ({}, 6),
    ],
)
async def test_as_many_are_counted_as_are_listed(
    env: Env, filter_: dict[str, Any], count: int
) -> None:
    counted = await env.client.count(**filter_)

    assert (counted.count, counted.is_estimate) == (count, False)
    assert len([it async for it in env.client.list(**filter_)]) == count


async def test_a_group_of_failures_is_counted_and_previewed_alike(env: Env) -> None:
    [group] = [it async for it in env.client.failures()]

    counted = await env.client.count(failure_id=group.failure_id)
    preview = await env.client.bulk.preview(BulkKind.RETRY, failure_id=group.failure_id)

    assert counted == ProcessCount(count=2)
    assert (preview.matched_count, preview.is_estimate) == (2, False)


async def test_a_broken_process_names_its_group_and_no_other_does(env: Env) -> None:
    [group] = [it async for it in env.client.failures()]

    broken, running = [await env.client.get(name) for name in ("p0", "p2")]

    assert (broken.failure, broken.process.failure_id) == (group, group.failure_id)
    assert (group.broken_count, group.reason) == (2, "BROKEN")
    assert running.failure is None


async def test_without_a_filter_each_namespace_is_counted_by_status(env: Env) -> None:
    own = ProcessCounts(namespace=env.namespace, running_count=3, error_count=2, finished_count=1)

    assert await env.client.count() == ProcessCount(count=6, namespaces=(own,))
    everywhere = await env.client.count(all_namespaces=True)
    assert own in everywhere.namespaces
    assert everywhere.count == sum(it.total for it in everywhere.namespaces)
    broken = await env.client.count(statuses=[ERROR])
    assert broken.namespaces == (ProcessCounts(namespace=env.namespace, error_count=2),)


async def test_a_blocking_client_counts_too(env: Env) -> None:
    with SyncClient(env.replica.address, namespace=env.namespace) as client:
        counted = await asyncio.to_thread(client.count, id_prefix="p")

    assert counted == ProcessCount(count=3)


async def test_above_the_limit_the_count_is_an_estimate(env: Env) -> None:
    counted = await env.client.count(id_prefix="p", exact_max=2)

    assert counted.is_estimate
    assert counted.count >= 3


async def test_an_invalid_filter_is_refused_by_the_names_of_its_fields(env: Env) -> None:
    asked = env.client.count(failure_id="x", id_prefix="\n", exact_max=1_000_001)

    status = await refusal(asked)

    assert {it.field for it in status.violations} == {
        "filter.failure_id",
        "filter.id_prefix",
        "exact_max",
    }
