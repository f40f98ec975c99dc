"""Requests over the wire: what reaches the engine, how long a caller waits, and its answer."""

import asyncio
import dataclasses
from typing import Any

import grpc
import pytest
from google.protobuf import field_mask_pb2

from progressor.domain.processes.admission import Request
from progressor.v1 import (
    namespace_service_pb2,
    process_service_pb2,
    types_pb2,
)
from tests.support.api.memory import namespace
from tests.support.api.server import Engine, end_of, failure

pb = process_service_pb2


async def test_each_method_reaches_its_collaborator(api: Engine) -> None:
    stub = api.process_service
    key: dict[str, Any] = {"namespace": "orders", "process_id": "1"}

    assert await stub.Start(pb.StartRequest(**key, args=b"a")) == pb.StartResponse(
        task_id=1, response=b"a"
    )
    assert await stub.Start(pb.StartRequest(**key, accept_only=True)) == pb.StartResponse(
        task_id=2, deduplicated=True
    )
    assert (await stub.Call(pb.CallRequest(**key, args=b"b"))).response == b"b"
    assert (await stub.Call(pb.CallRequest(**key, accept_only=True))).task_id == 2
    assert (await stub.Repair(pb.RepairRequest(**key, args=b"c"))).response == b"c"
    assert (await stub.Repair(pb.RepairRequest(**key, accept_only=True))).task_id == 2
    assert await stub.Notify(pb.NotifyRequest(**key)) == pb.NotifyResponse(
        task_id=2, deduplicated=True
    )
    assert (await stub.SimpleRepair(pb.SimpleRepairRequest(**key))).task_id == 4
    plain = pb.SimpleRepairRequest(namespace="orders", process_id="plain")
    assert not (await stub.SimpleRepair(plain)).HasField("task_id")
    assert (
        await stub.Put(pb.PutRequest(**key, status=types_pb2.PROCESS_STATUS_RUNNING))
    ).task_id == 5
    assert await stub.Remove(pb.RemoveRequest(**key)) == pb.RemoveResponse()
    awaited = await stub.AwaitTask(pb.AwaitTaskRequest(**key, idempotency_key="k"))
    assert awaited == pb.AwaitTaskResponse(task_id=3, type=2, response=b"k")  # type: ignore[arg-type]
    kinds = [r.task_type for r in api.requests.requests if isinstance(r, Request)]
    assert kinds == ["init", "init", "call", "call", "repair", "repair", "notify"]


async def test_the_trace_of_the_caller_goes_with_the_request(api: Engine) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = pb.NotifyRequest(namespace="orders", process_id="1")
    await api.process_service.Notify(request, metadata=(("traceparent", parent),))

    (seen,) = api.requests.requests
    assert isinstance(seen, Request)
    assert seen.trace_context == {"traceparent": parent}


async def test_namespaces_live_a_whole_life(api: Engine) -> None:
    stub = api.namespace_service
    wire = namespace_service_pb2
    new = wire.Namespace(name="new", processor_targets=["b:2"])
    created = await stub.CreateNamespace(wire.CreateNamespaceRequest(namespace=new))
    taken = await end_of(stub.CreateNamespace(wire.CreateNamespaceRequest(namespace=new)))
    new.worker_count_max = 5
    updated = await stub.UpdateNamespace(
        wire.UpdateNamespaceRequest(
            namespace=new,
            update_mask=field_mask_pb2.FieldMask(paths=["worker_count_max"]),
            expected_revision=1,
        )
    )
    late = await end_of(
        stub.UpdateNamespace(wire.UpdateNamespaceRequest(namespace=new, expected_revision=1))
    )
    got = await stub.GetNamespace(wire.GetNamespaceRequest(name="new"))
    page = await stub.ListNamespaces(wire.ListNamespacesRequest(page_size=1))
    rest = await stub.ListNamespaces(
        wire.ListNamespacesRequest(page_size=1, page_token=page.next_page_token)
    )
    await stub.DeleteNamespace(wire.DeleteNamespaceRequest(name="new"))
    gone = await end_of(stub.GetNamespace(wire.GetNamespaceRequest(name="new")))
    full = await end_of(stub.DeleteNamespace(wire.DeleteNamespaceRequest(name="orders")))

    assert (created.namespace.revision, created.namespace.worker_count_max) == (1, 1000)
    assert (taken[0], taken[1].reason) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "NAMESPACE_ALREADY_EXISTS",
    )
    assert (updated.namespace.revision, got.namespace.worker_count_max) == (2, 5)
    assert late[0] is grpc.StatusCode.ABORTED
    assert dict(late[1].metadata) == {"namespace": "new", "expected": "1", "actual": "2"}
    assert [n.name for n in (*page.namespaces, *rest.namespaces)] == ["new", "orders"]
    assert rest.next_page_token == ""
    assert (gone[0], gone[1].reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
    assert full[1].reason == "NAMESPACE_NOT_EMPTY"


async def test_the_largest_payload_of_all_gets_through(api: Engine) -> None:
    api.namespaces.stored["big"] = dataclasses.replace(
        namespace("big"), payload_bytes_max=16 * 1024**2
    )
    request = pb.NotifyRequest(namespace="big", process_id="1", args=b"x" * 16 * 1024**2)

    assert (await api.process_service.Notify(request)).task_id == 2


async def test_the_deadline_answer_names_the_task_that_goes_on(api: Engine) -> None:
    request = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    code, info = await end_of(api.process_service.Call(request, timeout=1.0))

    assert (code, info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert info.metadata["task_id"] == "77"


async def test_a_deadline_that_has_passed_asks_for_nothing(api: Engine) -> None:
    request = pb.CallRequest(namespace="orders", process_id="1")
    error = await failure(api.process_service.Call(request, timeout=0.0001))

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # A request that comes through says that the first, if it got that far, is done with.
    await api.process_service.Notify(pb.NotifyRequest(namespace="orders", process_id="1"))
    assert len(api.requests.requests) == 1


async def test_a_caller_that_hangs_up_is_let_go(api: Engine) -> None:
    request = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    call = api.process_service.Call(request)
    waiting = asyncio.ensure_future(failure_or_cancel(call))
    await api.requests.asked.wait()
    call.cancel()
    await waiting

    async with asyncio.timeout(5):
        await api.requests.cancelled.wait()


async def failure_or_cancel(call: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        await call
