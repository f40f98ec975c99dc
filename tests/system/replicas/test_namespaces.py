"""Namespaces at run time: what a change of one means for its processes, on the real engine."""

import dataclasses

import pytest
from grpc import StatusCode

from tests.support.engine.replica import Env, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_namespace_with_processes_cannot_be_deleted(env: Env) -> None:
    await env.running("p")

    status = await refusal(env.client.namespaces.delete(env.namespace))

    assert (status.code, status.reason) == (
        StatusCode.FAILED_PRECONDITION,
        "NAMESPACE_NOT_EMPTY",
    )
    assert (await env.client.call("p", b"1")).response == b"1"


async def test_an_update_counts_from_the_next_request_on(env: Env) -> None:
    await env.running("p")
    config = await env.client.namespaces.get(env.namespace)
    small = dataclasses.replace(config, payload_bytes_max=10)
    await env.client.namespaces.update(small, fields=["payload_bytes_max"])

    status = await refusal(env.client.call("p", b"x" * 11))

    assert [violation.field for violation in status.violations] == ["args"]


async def test_nobody_stays_connected_for_a_namespace_that_is_gone(env: Env) -> None:
    await env.running("p")
    await env.client.remove("p")

    await env.client.namespaces.delete(env.namespace)

    await env.processor.hung_up()
