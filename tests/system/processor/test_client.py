"""Asking a processor over a real socket: whatever it does becomes an outcome, either way.

Either way: by a stream, and by a call of its own. What streams have of their own is tested in
test_processor_stream.py.
"""

import asyncio
import dataclasses
import datetime as dt
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from progressor.domain.processes.intent import Failed
from progressor.processor.failures import misconfigured
from tests.support.builders import seconds
from tests.support.processor import scripted as script
from tests.support.processor.asking import (
    ANSWERED,
    TASK,
    UNAVAILABLE,
    Asking,
    failed,
    running_channels,
    wordless,
)
from tests.support.processor.scripted import ScriptedProcessor

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STREAM, CALL = "by a stream", "by a call"
BY_A_CALL = pytest.mark.parametrize("way", [CALL], indirect=True)


@pytest.fixture(params=[STREAM, CALL])
def way(request: pytest.FixtureRequest) -> str:
    """Return how the processor is asked."""
    return str(request.param)


@pytest_asyncio.fixture
async def processor(way: str) -> AsyncIterator[ScriptedProcessor]:
    async with ScriptedProcessor(streaming=way == STREAM) as processor:
        yield processor
        assert way == CALL or not processor.called


@pytest_asyncio.fixture
async def asking(processor: ScriptedProcessor) -> AsyncIterator[Asking]:
    async with running_channels() as channels:
        yield Asking(channels, processor.target)


async def test_the_processor_gets_the_request_its_trace_and_the_deadline(
    processor: ScriptedProcessor, asking: Asking, way: str
) -> None:
    told = {"traceparent": TRACEPARENT, "tracestate": "a=1", "baggage": "tenant=acme"}
    context = {**told, "x-vendor": "not passed on"}
    before = dt.datetime.now(dt.UTC)

    await asking.ask(dataclasses.replace(TASK, trace_context=context), seconds=30)

    (request,) = await processor.received(1)
    headers = processor.metadata[0]
    assert (request.process.process_id, request.task.task_id) == ("order-1", 2)
    assert dict(request.task.trace_context) == context
    if way == CALL:
        assert told.items() <= headers.items()
    assert "x-vendor" not in headers
    left = request.deadline.ToDatetime(dt.UTC) - before
    assert dt.timedelta(seconds=29) < left < dt.timedelta(seconds=40)


@BY_A_CALL
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.CANCELLED, UNAVAILABLE),
        (grpc.StatusCode.ABORTED, failed(10, "ABORTED", retryable=True)),
        (grpc.StatusCode.UNAUTHENTICATED, misconfigured(16, "", "text", seconds(0.2))),
        (grpc.StatusCode.UNKNOWN, failed(2, "UNKNOWN", retryable=True)),
    ],
)
async def test_a_status_of_the_processor_is_understood(
    code: grpc.StatusCode, expected: Failed, processor: ScriptedProcessor, asking: Asking
) -> None:
    processor.on_process("order-1", script.Refuse(code, "text"))

    assert await asking.ask() == expected


async def test_a_host_that_takes_the_connection_and_is_silent_ends_at_the_deadline(
    asking: Asking,
) -> None:
    # The kernel accepts connections for a listening socket; nothing ever reads.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asking.aim_at(f"127.0.0.1:{silent.getsockname()[1]}")

        async with asyncio.timeout(5):
            outcome = await asking.ask(seconds=0.2)

    # It was never connected, so that the step was not sent and does not count.
    assert isinstance(outcome, Failed)
    assert (outcome.unreachable, outcome.sent) == (True, False)
    assert outcome.message.endswith("no connection within 0.2 s")


async def test_a_processor_on_a_unix_socket_is_asked(
    tmp_path: Path, asking: Asking, way: str
) -> None:
    async with ScriptedProcessor(
        path=f"{tmp_path}/processor", streaming=way == STREAM
    ) as processor:
        asking.aim_at(processor.target)

        assert await asking.ask() == ANSWERED


async def test_a_call_in_flight_outlives_a_change_of_targets(
    processor: ScriptedProcessor, asking: Asking
) -> None:
    hang = script.Hang()
    processor.on_process("order-1", hang)

    async with ScriptedProcessor() as other, asyncio.TaskGroup() as group:
        in_flight = group.create_task(asking.ask())
        await processor.received(1)
        asking.aim_at(other.target)
        assert await asking.ask() == ANSWERED
        hang.released.set()

    assert in_flight.result() == ANSWERED


async def test_a_call_whose_channel_is_closed_is_not_taken_for_a_cancelled_one(
    processor: ScriptedProcessor, asking: Asking
) -> None:
    processor.on_process("order-1", script.Hang())

    async with asyncio.TaskGroup() as group:
        outcome = group.create_task(asking.ask())
        await processor.received(1)
        await asking.channels.close()

    assert wordless(outcome.result()) == UNAVAILABLE


async def test_a_cancellation_by_the_worker_goes_on(
    processor: ScriptedProcessor, asking: Asking
) -> None:
    processor.on_process("order-1", script.Hang())

    asked = asyncio.create_task(asking.ask())
    await processor.received(1)
    asked.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asked


@BY_A_CALL
async def test_a_request_too_large_for_the_processor_is_not_sent_again(asking: Asking) -> None:
    task = dataclasses.replace(TASK, args=b"x" * (64 * 1024 * 1024))

    outcome = await asking.ask(task)

    assert wordless(outcome) == failed(8, "MESSAGE_TOO_LARGE", retryable=False)
