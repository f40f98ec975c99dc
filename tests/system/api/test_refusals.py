"""Refusals over the wire: bad requests, unknown names, rejections, and bugs that tell nothing."""

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import (
    error_details_pb2,
)

from progressor import errors
from progressor.api.calls import interceptors
from progressor.v1 import (
    process_service_pb2,
    types_pb2,
)
from tests.support.api.memory import PAYLOAD_MAX
from tests.support.api.server import Engine, end_of, failure, rich, violations_of

pb = process_service_pb2


async def test_all_violations_are_told_before_anything_is_written(api: Engine) -> None:
    request = pb.CallRequest(
        namespace="orders", args=b"x" * (PAYLOAD_MAX + 1), idempotency_key="\0"
    )
    error = await failure(api.process_service.Call(request))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations_of(error) == {
        "process_id": "must not be empty",
        "args": f"must be at most {PAYLOAD_MAX} bytes, got {PAYLOAD_MAX + 1}",
        "idempotency_key": "must not contain the control character U+0000",
    }
    assert api.requests.requests == []


@pytest.mark.parametrize("name", ["!", "unknown"])
async def test_a_bad_request_to_no_namespace_is_told_as_bad(api: Engine, name: str) -> None:
    request = pb.CallRequest(namespace=name, args=b"x" * (16 * 1024**2 + 1))
    error = await failure(api.process_service.Call(request))

    assert {"process_id", "args"} <= set(violations_of(error))


async def test_an_unknown_namespace_is_named_by_every_method(api: Engine) -> None:
    key: dict[str, Any] = {"namespace": "unknown", "process_id": "1"}
    stub = api.process_service
    calls: list[Any] = [
        stub.Start(pb.StartRequest(**key)),
        stub.Call(pb.CallRequest(**key)),
        stub.Notify(pb.NotifyRequest(**key)),
        stub.Repair(pb.RepairRequest(**key)),
        stub.SimpleRepair(pb.SimpleRepairRequest(**key)),
        stub.Get(pb.GetRequest(**key)),
        stub.Put(pb.PutRequest(**key, status=types_pb2.PROCESS_STATUS_RUNNING)),
        stub.Remove(pb.RemoveRequest(**key)),
        stub.Trace(pb.TraceRequest(**key)),
        stub.List(pb.ListRequest(namespace="unknown")),
        stub.AwaitTask(pb.AwaitTaskRequest(**key, task_id=1)),
    ]
    for call in calls:
        code, info = await end_of(call)
        assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
        assert info.metadata["namespace"] == "unknown"
    assert api.requests.requests == []


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x0a\x06orders\x12\x02\xff\xfe", "process_id"),
        (b"\x0a\x02\xff\xfe", "namespace"),
        (b"\x0a\x7fshort", "request"),
    ],
)
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    api: Engine, data: bytes, field: str
) -> None:
    call: Any = api.channel.unary_unary("/progressor.v1.ProcessService/Call")
    error = await failure(call(data))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list(violations_of(error)) == [field]


async def test_a_bug_tells_nothing_of_itself(api: Engine) -> None:
    api.requests.raises = ValueError("password=hunter2")
    request = pb.CallRequest(namespace="orders", process_id="1")
    error = await failure(api.process_service.Call(request))

    assert error.code() is grpc.StatusCode.INTERNAL
    assert (error.details() or "").startswith("internal error [")
    assert "hunter2" not in str(error)


async def test_a_rejection_arrives_as_the_processor_put_it(api: Engine) -> None:
    api.requests.raises = errors.RejectedError(
        "残高不足\n50 %", code=13, processor_reason="NO_MONEY", metadata={"left": "3"}
    )
    request = pb.CallRequest(namespace="orders", process_id="1")
    error = await failure(api.process_service.Call(request))
    info = error_details_pb2.ErrorInfo()
    rich(error).details[0].Unpack(info)

    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "残高不足\n50 %")
    assert (info.domain, info.reason, dict(info.metadata)) == (
        "processor",
        "NO_MONEY",
        {"left": "3"},
    )


@pytest.mark.parametrize("letter", ["x", "残"])
async def test_an_error_with_a_huge_text_still_arrives(api: Engine, letter: str) -> None:
    api.requests.raises = errors.ProcessFailedError("1", letter * 100_000, task_id=9)
    request = pb.CallRequest(namespace="orders", process_id="1")
    code, info = await end_of(api.process_service.Call(request))

    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "PROCESS_FAILED")
    assert info.metadata["task_id"] == "9"


async def test_large_requests_in_flight_are_bounded_by_their_bytes_together(
    api: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptors, "LARGE_REQUEST_BYTES", 4)
    monkeypatch.setattr(interceptors, "REQUEST_BYTES_MAX", 1_000_000)
    stub = api.process_service
    first = asyncio.ensure_future(
        ended_with(stub.Call(pb.CallRequest(namespace="orders", process_id="1", args=b"hang")))
    )
    await api.requests.asked.wait()
    large = pb.CallRequest(namespace="orders", process_id="1", args=b"x" * 1_000_000)
    refused = await ended_with(stub.Call(large))
    api.requests.release.set()
    await first
    answered = await ended_with(stub.Call(large))

    assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answered is grpc.StatusCode.OK


async def ended_with(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
