"""A step that is larger than its processor takes is not sent, and its process says why."""

import asyncio
import dataclasses

import grpc
import pytest

from progressor.sdk import (
    NO_HISTORY,
    HistoryRange,
    NewEvent,
    ProcessFailedError,
    Processor,
    ProcessStatus,
    RepairFailedError,
)
from progressor.v1.processor_service_pb2 import DescribeRequest, DescribeResponse
from progressor.v1.processor_service_pb2_grpc import ProcessorServiceStub
from tests.support.engine.replica import Env, Replica
from tests.support.processor.scripted import ScriptedProcessor
from tests.support.storage.doctor.doctor import find

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
EVENTS = [NewEvent(payload=b"x" * MIB)] * 6


async def with_limit(processor: ScriptedProcessor, limit: int | None) -> None:
    """Have a processor take another limit, as an operator would: by a restart."""
    processor.request_bytes_max = limit
    await processor.stop()
    await processor.restart()


async def broken_by_its_size(env: Env) -> str:
    """Call a process whose history its processor does not take; return what it says of that."""
    await env.client.put("p", history=EVENTS)
    with pytest.raises(ProcessFailedError) as caught:
        await env.client.call("p", b"1")
    error = caught.value
    process = (await env.client.get("p", history=NO_HISTORY)).process
    assert (error.own, error.failure_reason) == (True, "HISTORY_TOO_LARGE")
    assert (process.status, process.detail) == (ProcessStatus.ERROR, error.detail)
    assert env.asked_for("p") == []
    return error.detail


async def test_of_a_processor_that_says_nothing_grpcs_default_is_assumed(env: Env) -> None:
    await with_limit(env.processor, None)

    detail = await broken_by_its_size(env)

    assert "6,291,456 of them in the 6 events of its history" in detail
    assert f"the processor at {env.processor.target} accepts at most 4,194,304" in detail
    assert "raise its limit on received messages" in detail
    assert "history policy (last n, none)" in detail


async def test_the_process_can_be_repaired_once_the_limit_was_raised(env: Env) -> None:
    await with_limit(env.processor, None)
    await broken_by_its_size(env)
    with pytest.raises(RepairFailedError, match="6,291,456 of them in the 6 events"):
        await env.client.repair("p", b"too early")

    await with_limit(env.processor, 64 * MIB)
    repaired = await env.client.repair("p", b"raised")
    answer = await env.client.call("p", b"1")

    assert (repaired.response, answer.response) == (b"raised", b"1")
    assert [len(it.history) for it in env.asked_for("p")] == [6, 7]


async def test_the_process_can_be_repaired_with_less_history(env: Env) -> None:
    await with_limit(env.processor, None)
    await broken_by_its_size(env)

    repaired = await env.client.repair("p", b"less", history=HistoryRange(after=5))
    config = await env.client.namespaces.get(env.namespace)
    less = dataclasses.replace(config, history_last=2)
    await env.client.namespaces.update(less, fields=["history_last"])
    answer = await env.client.call("p", b"1")

    assert (repaired.response, answer.response) == (b"less", b"1")
    assert [len(it.history) for it in env.asked_for("p")] == [1, 2]


@pytest.mark.parametrize(("limit", "is_near"), [(12 * MIB, True), (64 * MIB, False)])
async def test_a_step_that_takes_half_of_the_limit_is_warned_of(
    env: Env,
    limit: int,
    is_near: bool,  # from the table
) -> None:
    await with_limit(env.processor, limit)
    await env.client.put("p", history=EVENTS)
    await env.client.call("p", b"1")

    families = {it.metric.name: it for it in env.replica.engine.metrics.families()}
    told = dict(families["progressor_largest_step_ratio"].values)
    assert ((env.namespace,) in told) == is_near
    named = f"{env.namespace}/p: "
    while is_near:  # ends with the next heartbeat
        found = await asyncio.to_thread(find, env.replica.engine.dsn, "large_steps")
        if any(it.startswith(named) for it in found.offenders):
            break


async def test_only_large_steps_ask_and_once(env: Env) -> None:
    await env.running("small")
    small = env.processor.described_count
    await env.client.put("p", history=EVENTS)
    for _ in range(3):
        await env.client.call("p", b"1")

    assert (small, env.processor.described_count) == (0, 1)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_processor_of_the_sdk_announces_its_limit(
    replica: Replica,
    streaming: bool,  # from the table
) -> None:
    processor = Processor[None]("large")
    processor.call(lambda step: len(step.history))
    request = DescribeRequest()
    async with (
        processor.running("127.0.0.1:0", streaming=streaming) as address,
        grpc.aio.insecure_channel(address) as channel,
        replica.namespace(f"large-{streaming}".lower(), address) as client,
    ):
        described: DescribeResponse = await ProcessorServiceStub(channel).Describe(request)
        await client.put("p", history=[NewEvent(payload="x" * MIB)] * 6)
        answer = await client.call("p")

    assert described.request_bytes_max == 64 * MIB
    assert answer.response == 6
