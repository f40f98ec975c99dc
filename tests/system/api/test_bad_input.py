"""Unknown, malformed or too large input is refused by name, and affects no other request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from grpc import StatusCode

from progressor.sdk.transport.failures import Status, read_status
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from progressor.v1.types_pb2 import (
    DIRECTION_BACKWARD,
    PROCESS_STATUS_INIT,
    PROCESS_STATUS_RUNNING,
    HistoryRange,
)
from tests.support.engine.replica import Env, Replica, open_env, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024
METHOD = "/progressor.v1.ProcessService/{}"
DEADLINE_SECONDS = 20.0

RPCS = (
    "Start", "Call", "Notify", "Repair", "SimpleRepair", "Get", "Put", "Remove", "Trace",
    "AwaitTask", "Cancel",
)  # fmt: skip
EXTRA: dict[str, dict[str, Any]] = {
    "Put": {"status": PROCESS_STATUS_RUNNING},
    "AwaitTask": {"task_id": 1},
    "Cancel": {"task_id": 1},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def channel(replica: Replica) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(replica.address) as channel:
        yield channel


def message(env: Env, rpc: str, **fields: Any) -> Message:
    """Return a request that is right but for what `fields` say."""
    base: dict[str, Any] = {"namespace": env.namespace, "process_id": "p"}
    request: Message = getattr(pb, f"{rpc}Request")(**base | EXTRA.get(rpc, {}) | fields)
    return request


async def refused(channel: grpc.aio.Channel, rpc: str, request: Message | bytes) -> Status:
    """Send a request as it stands, and return how it was refused."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD.format(rpc))
    packed = request if isinstance(request, bytes) else request.SerializeToString()
    try:
        await call(packed, timeout=DEADLINE_SECONDS)
    except grpc.aio.AioRpcError as error:
        return read_status(error, "")
    text = f"{rpc} was not refused"
    raise AssertionError(text)


def fields_of(status: Status) -> list[str]:
    """Return the fields that a refusal names, having checked that it is of this kind."""
    assert (status.code, status.reason) == (StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    return [violation.field for violation in status.violations]


class TestUnknown:
    @pytest.mark.parametrize("rpc", sorted({*RPCS} - {"Start", "Put"}))
    async def test_process_is_not_found(
        self, env: Env, channel: grpc.aio.Channel, rpc: str
    ) -> None:
        status = await refused(channel, rpc, message(env, rpc))

        assert (status.code, status.reason) == (StatusCode.NOT_FOUND, "PROCESS_NOT_FOUND")
        assert status.metadata["process_id"] == "p"

    @pytest.mark.parametrize("direction", [0, DIRECTION_BACKWARD])
    @pytest.mark.parametrize("rpc", ["Get", "Start", "Call", "Notify", "Repair"])
    async def test_event_is_not_found(
        self, env: Env, channel: grpc.aio.Channel, rpc: str, direction: Any
    ) -> None:
        if rpc == "Repair":
            await env.broken("p")
        elif rpc != "Start":
            await env.client.start("p")
        asked = len(env.processor.requests)

        beyond = HistoryRange(after=9, limit=0, direction=direction)
        status = await refused(channel, rpc, message(env, rpc, history_range=beyond))

        assert (status.code, status.reason) == (StatusCode.NOT_FOUND, "EVENT_NOT_FOUND")
        assert (status.metadata["process_id"], status.metadata["event_id"]) == ("p", "9")
        assert len(env.processor.requests) == asked

    async def test_task_is_not_found(self, env: Env, channel: grpc.aio.Channel) -> None:
        await env.client.start("p")

        status = await refused(channel, "AwaitTask", message(env, "AwaitTask", task_id=10**15))

        assert (status.code, status.reason) == (StatusCode.NOT_FOUND, "TASK_NOT_FOUND")
        assert status.metadata["task_id"] == str(10**15)

    async def test_method_is_unimplemented(self, channel: grpc.aio.Channel) -> None:
        status = await refused(channel, "Explode", b"")

        assert status.code is StatusCode.UNIMPLEMENTED


async def test_a_refused_request_writes_nothing(env: Env, channel: grpc.aio.Channel) -> None:
    await refused(channel, "Start", message(env, "Start", args=b"x" * (5 * MIB)))
    await refused(channel, "Put", message(env, "Put", status=PROCESS_STATUS_INIT))

    assert [process async for process in env.client.list()] == []


async def test_a_payload_at_the_namespaces_bound_is_taken_and_one_byte_more_is_not(
    replica: Replica,
) -> None:
    async with open_env(replica, payload_bytes_max=1000) as env:
        answer = await env.client.start("p", b"x" * 1000)
        status = await refusal(env.client.call("p", b"x" * 1001))

    assert answer.response == b"x" * 1000
    assert fields_of(status) == ["args"]


async def test_payloads_are_any_bytes(env: Env) -> None:
    payload = bytes(range(256)) * 100

    answer = await env.client.start("p", payload)

    assert answer.response == payload
    assert (await env.client.get("p")).history[0].payload == payload


POISON: dict[str, Callable[[Env], Message | bytes]] = {
    "a payload of 5 MiB": lambda env: message(env, "Call", args=b"x" * (5 * MIB)),
    "a NUL in the id": lambda env: message(env, "Call", process_id="p\0"),
    "a NUL in the key": lambda env: message(env, "Call", idempotency_key="\0"),
    "a NUL in the context": lambda env: message(env, "Call", caller_context={"k": "\0"}),
    "an id that is not UTF-8": lambda env: message(
        env, "Call", process_id="XYZ"
    ).SerializeToString().replace(b"XYZ", b"\xff\xfe\xfd"),
    "a surrogate in the id": lambda env: message(
        env, "Call", process_id="XYZ"
    ).SerializeToString().replace(b"XYZ", b"\xed\xa0\x80"),
}  # fmt: skip


@pytest.mark.parametrize("poison", POISON)
async def test_a_poisoned_request_among_good_ones_is_refused_alone(
    env: Env, channel: grpc.aio.Channel, poison: str
) -> None:
    names = [f"good-{number}" for number in range(20)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(env.client.start(name))

    async with asyncio.TaskGroup() as group:
        before = [group.create_task(env.client.call(name, b"1")) for name in names]
        poisoned = group.create_task(refused(channel, "Call", POISON[poison](env)))
        after = [group.create_task(env.client.call(name, b"2")) for name in names]

    assert len(fields_of(poisoned.result())) == 1
    assert [task.result().response for task in (*before, *after)] == [b"1"] * 20 + [b"2"] * 20


async def test_a_message_that_is_larger_than_any_may_be_is_refused(replica: Replica) -> None:
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(replica.address, options=options) as channel:
        request = pb.CallRequest(namespace="n", process_id="p", args=b"x" * (65 * MIB))
        call: Awaitable[Any] = ProcessServiceStub(channel).Call(request, timeout=DEADLINE_SECONDS)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call

    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
