"""Reads over the wire: histories, traces and lists come in pages, and Get waits for init."""

import grpc
import pytest

from progressor import errors
from progressor.domain.processes.process import ProcessStatus, process_key
from progressor.v1 import (
    process_service_pb2,
    replica_service_pb2,
    types_pb2,
)
from tests.support.api.memory import SECOND
from tests.support.api.server import Engine, end_of
from tests.support.builders import make_replica_view

pb = process_service_pb2


async def test_no_history_is_not_read(api: Engine) -> None:
    request = pb.GetRequest(
        namespace="orders", process_id="1", history_range=types_pb2.HistoryRange(limit=0)
    )
    response = await api.process_service.Get(request)

    assert response.process.last_event_id == 10
    assert api.processes.ranges == []


@pytest.mark.parametrize("end", [None, errors.ProcessFailedError("1", "why", task_id=1)])
async def test_get_waits_until_a_process_is_made(api: Engine, end: Exception | None) -> None:
    api.processes.status, api.requests.raises = ProcessStatus.INIT, end
    request = pb.GetRequest(namespace="orders", process_id="1", await_init=True)
    response = await api.process_service.Get(request)

    assert response.process.status == 2
    assert api.requests.requests == [process_key("orders", "1")]


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


async def test_a_list_comes_in_pages_without_states(api: Engine) -> None:
    seen: list[str] = []
    request = pb.ListRequest(namespace="orders", page_size=2)
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


async def test_replicas_that_cannot_be_read_are_unavailable_storage(api: Engine) -> None:
    api.roster.list.side_effect = errors.StorageUnavailableError("away")

    request = replica_service_pb2.ListReplicasRequest()
    code, info = await end_of(api.replica_service.ListReplicas(request))

    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
