"""Namespaces at run time: what a change of one means for its processes, on the real engine."""

import dataclasses
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpc import StatusCode

from tests.support.engine.replica import QUIET, Env, Replica, open_env, refusal, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica) as env:
        yield env


async def test_a_namespace_with_processes_cannot_be_deleted(env: Env) -> None:
    await env.running("p")

    status = await refusal(env.client.namespaces.delete(env.namespace))

    assert (status.code, status.reason) == (
        StatusCode.FAILED_PRECONDITION,
        "NAMESPACE_NOT_EMPTY",
    )
    assert (await env.client.call("p", b"1")).response == b"1"


async def test_a_deleted_namespace_takes_no_more_processes(replica: Replica, env: Env) -> None:
    config = await env.client.namespaces.get(env.namespace)
    gone = dataclasses.replace(config, name="gone")
    await env.client.namespaces.create(gone)
    await env.client.namespaces.delete("gone")

    status = await refusal(env.client.start("p", namespace="gone"))

    assert (status.code, status.reason) == (StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
    assert replica.points.count("claimed", key=env.key("p")) == 0


async def test_a_name_that_is_taken_is_refused(env: Env) -> None:
    config = await env.client.namespaces.get(env.namespace)

    status = await refusal(env.client.namespaces.create(config))

    assert (status.code, status.reason) == (
        StatusCode.ALREADY_EXISTS,
        "NAMESPACE_ALREADY_EXISTS",
    )


async def test_an_update_of_another_revision_is_refused_and_changes_nothing(env: Env) -> None:
    config = await env.client.namespaces.get(env.namespace)
    changed = dataclasses.replace(config, worker_count_max=7)
    await env.client.namespaces.update(changed, expected_revision=config.revision)

    status = await refusal(env.client.namespaces.update(config, expected_revision=config.revision))

    assert status.reason == "NAMESPACE_CHANGED"
    assert (await env.client.namespaces.get(env.namespace)).worker_count_max == 7


async def test_an_update_counts_from_the_next_request_on(env: Env) -> None:
    await env.running("p")
    config = await env.client.namespaces.get(env.namespace)
    small = dataclasses.replace(config, payload_bytes_max=10)
    await env.client.namespaces.update(small, fields=["payload_bytes_max"])

    status = await refusal(env.client.call("p", b"x" * 11))

    assert [violation.field for violation in status.violations] == ["args"]


async def test_an_update_with_a_mask_leaves_the_other_fields(env: Env) -> None:
    config = await env.client.namespaces.get(env.namespace)
    other = dataclasses.replace(config, worker_count_max=9, waiting_callers_max=1)

    await env.client.namespaces.update(other, fields=["worker_count_max"])

    now = await env.client.namespaces.get(env.namespace)
    assert (now.worker_count_max, now.waiting_callers_max) == (9, config.waiting_callers_max)
    assert now.revision == config.revision + 1


async def test_nobody_stays_connected_for_a_namespace_that_is_gone(env: Env) -> None:
    await env.running("p")
    await env.client.remove("p")

    await env.client.namespaces.delete(env.namespace)

    await env.processor.hung_up()
