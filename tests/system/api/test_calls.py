"""Calls over the wire: what reaches the engine, how long a caller waits, and its answer."""

import asyncio
import dataclasses
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from progressor import errors
from progressor.api.calls import interceptors
from progressor.api.processes.servicer import ProcessServicer
from progressor.domain.processes.admission import Request
from progressor.domain.processes.process import ProcessStatus
from progressor.v1 import namespace_service_pb2, replica_service_pb2, types_pb2
from progressor.v1 import process_service_pb2 as pb
from tests.support.api.memory import SECOND, namespace
from tests.support.api.server import Engine, end_of, failure, rich, violations_of
from tests.support.builders import make_replica_view


async def test_each_method_reaches_its_collaborator(api: Engine) -> None:
    stub = api.process_service
    key: dict[str, Any] = {"namespace": "orders", "process_id": "1"}

    for name in ("Start", "Call", "Repair"):
        request, response = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")
        call = getattr(stub, name)
        assert await call(request(**key, args=b"a")) == response(task_id=1, response=b"a")
        accepted = await call(request(**key, accept_only=True))
        assert accepted == response(task_id=2, deduplicated=True)
    notified = await stub.Notify(pb.NotifyRequest(**key))
    assert notified == pb.NotifyResponse(task_id=2, deduplicated=True)
    assert (await stub.SimpleRepair(pb.SimpleRepairRequest(**key))).task_id == 4
    plain = pb.SimpleRepairRequest(namespace="orders", process_id="plain")
    assert not (await stub.SimpleRepair(plain)).HasField("task_id")
    put = await stub.Put(pb.PutRequest(**key, status=types_pb2.PROCESS_STATUS_RUNNING))
    assert put.task_id == 5
    assert await stub.Remove(pb.RemoveRequest(**key)) == pb.RemoveResponse()
    awaited = await stub.AwaitTask(pb.AwaitTaskRequest(**key, idempotency_key="k"))
    assert awaited == pb.AwaitTaskResponse(task_id=3, type=2, response=b"k")  # type: ignore[arg-type]
    kinds = [r.task_type for r in api.requests.requests if isinstance(r, Request)]
    assert kinds == ["init", "init", "call", "call", "repair", "repair", "notify"]


async def test_namespaces_live_a_whole_life(api: Engine) -> None:
    stub, wire = api.namespace_service, namespace_service_pb2
    new = wire.Namespace(name="new", processor_targets=["b:2"])
    await stub.CreateNamespace(wire.CreateNamespaceRequest(namespace=new))
    taken = await end_of(stub.CreateNamespace(wire.CreateNamespaceRequest(namespace=new)))
    new.worker_count_max = 5
    update = wire.UpdateNamespaceRequest(namespace=new, expected_revision=1)
    update.update_mask.paths.append("worker_count_max")
    updated = await stub.UpdateNamespace(update)
    late = await end_of(stub.UpdateNamespace(update))
    got = await stub.GetNamespace(wire.GetNamespaceRequest(name="new"))
    page = await stub.ListNamespaces(wire.ListNamespacesRequest(page_size=1))
    token = page.next_page_token
    rest = await stub.ListNamespaces(wire.ListNamespacesRequest(page_size=1, page_token=token))
    await stub.DeleteNamespace(wire.DeleteNamespaceRequest(name="new"))
    gone = await end_of(stub.GetNamespace(wire.GetNamespaceRequest(name="new")))
    full = await end_of(stub.DeleteNamespace(wire.DeleteNamespaceRequest(name="orders")))

    assert updated.namespace == got.namespace
    assert (got.namespace.revision, got.namespace.worker_count_max) == (2, 5)
    assert dict(late[1].metadata) == {"namespace": "new", "expected": "1", "actual": "2"}
    assert [n.name for n in (*page.namespaces, *rest.namespaces)] == ["new", "orders"]
    assert rest.next_page_token == ""
    assert [info.reason for _, info in (taken, late, gone, full)] == [
        "NAMESPACE_ALREADY_EXISTS",
        "NAMESPACE_CHANGED",
        "NAMESPACE_NOT_FOUND",
        "NAMESPACE_NOT_EMPTY",
    ]


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


async def test_no_history_is_not_read(api: Engine) -> None:
    request = pb.GetRequest(
        namespace="orders", process_id="1", history_range=types_pb2.HistoryRange(limit=0)
    )
    response = await api.process_service.Get(request)

    assert response.process.last_event_id == 10
    assert api.processes.ranges == []


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (errors.DeadlineExceededError(1), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.OverloadedError("callers", SECOND), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_wait_that_ends_before_init_is_told(
    api: Engine, end: Exception, code: grpc.StatusCode
) -> None:
    api.processes.status, api.requests.raises = ProcessStatus.INIT, end
    request = pb.GetRequest(namespace="orders", process_id="1", await_init=True)

    assert (await end_of(api.process_service.Get(request)))[0] is code


async def test_a_process_in_init_is_returned_as_such(api: Engine) -> None:
    api.processes.status = ProcessStatus.INIT
    request = pb.GetRequest(namespace="orders", process_id="1")

    assert (await api.process_service.Get(request)).process.status == 1


async def test_a_trace_too_large_for_a_message_comes_in_pages(api: Engine) -> None:
    request = pb.TraceRequest(namespace="orders", process_id="1")
    first = await api.process_service.Trace(request)
    request.page_token = first.next_page_token
    second = await api.process_service.Trace(request)

    assert [t.task_id for t in first.tasks] == [1, 2, 3]
    assert [t.task_id for t in second.tasks] == [4, 5]
    assert second.next_page_token == ""


async def test_a_trace_comes_newest_first_on_request(api: Engine) -> None:
    request = pb.TraceRequest(
        namespace="orders", process_id="1", direction=types_pb2.DIRECTION_BACKWARD
    )
    first = await api.process_service.Trace(request)
    request.page_token = first.next_page_token
    second = await api.process_service.Trace(request)

    assert [t.task_id for t in first.tasks] == [5, 4, 3]
    assert [t.task_id for t in second.tasks] == [2, 1]
    assert second.next_page_token == ""


async def test_a_list_comes_in_pages_without_states(api: Engine) -> None:
    seen: list[str] = []
    request = pb.ListRequest(filter=types_pb2.ProcessFilter(namespace="orders"), page_size=2)
    while True:
        response = await api.process_service.List(request)
        seen.extend(p.process_id for p in response.processes)
        assert not any(p.aux_state for p in response.processes)
        if not (token := response.next_page_token):
            break
        request.page_token = token

    assert seen == ["0", "1", "2", "3", "4"]


async def test_replicas_are_listed_page_by_page(api: Engine) -> None:
    wire = replica_service_pb2
    silent = make_replica_view(replica_id=1, heartbeat_age=9 * SECOND)
    api.roster.list.return_value = (silent, make_replica_view(replica_id=2))

    page = await api.replica_service.ListReplicas(wire.ListReplicasRequest(page_size=1))

    assert [(it.replica_id, it.state) for it in page.replicas] == [(1, wire.REPLICA_STATE_SILENT)]
    assert page.next_page_token
    api.roster.list.assert_called_once_with(after=0, limit=2)


@pytest.mark.parametrize("name", ["!", "unknown"])
async def test_a_bad_request_to_no_namespace_is_told_as_bad(api: Engine, name: str) -> None:
    request = pb.CallRequest(namespace=name, args=b"x" * (16 * 1024**2 + 1))
    error = await failure(api.process_service.Call(request))

    assert {"process_id", "args"} <= set(violations_of(error))


async def test_an_unknown_namespace_is_named_by_every_method(api: Engine) -> None:
    key: dict[str, Any] = {"namespace": "unknown", "process_id": "1"}
    stub = api.process_service
    more: dict[str, dict[str, Any]] = {
        "Put": key | {"status": types_pb2.PROCESS_STATUS_RUNNING},
        "List": {"filter": types_pb2.ProcessFilter(namespace="unknown")},
        "Count": {"filter": types_pb2.ProcessFilter(namespace="unknown")},
        "ListFailures": {"namespace": "unknown"},
        "AwaitTask": key | {"task_id": 1},
        "Cancel": key | {"task_id": 1},
        "Terminate": key | {"reason": "no need"},
    }
    for rpc in set(ProcessServicer.service.methods_by_name) - {"Session"}:
        request = getattr(pb, f"{rpc}Request")(**more.get(rpc, key))
        code, info = await end_of(getattr(stub, rpc)(request))
        assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")
        assert info.metadata["namespace"] == "unknown"
    assert api.requests.requests == []


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
    hanging = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    first = asyncio.create_task(as_coroutine(stub.Call(hanging)))
    await api.requests.asked.wait()
    large = pb.CallRequest(namespace="orders", process_id="1", args=b"x" * 1_000_000)
    refused, _ = await end_of(stub.Call(large))
    api.requests.release.set()
    await first

    assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Call(large)).task_id == 1


async def as_coroutine(call: Any) -> pb.CallResponse:
    return await call  # type: ignore[no-any-return]  # untyped by grpc
