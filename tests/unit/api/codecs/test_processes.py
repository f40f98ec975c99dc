"""Requests of ProcessService: violations by field, all of them together."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import struct_pb2, timestamp_pb2

from progressor import errors
from progressor.api.calls import page_tokens
from progressor.api.processes import requests
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskType
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.wire import shapes

LIMIT = 1000


def fields_of(decode: Callable[[], object]) -> list[str]:
    with pytest.raises(errors.InvalidRequestError) as caught:
        decode()
    return [violation.field for violation in caught.value.violations]


def decode_call(**fields: object) -> Request:
    given = {"namespace": "orders", "process_id": "1", **fields}
    message = pb.CallRequest(**given)  # type: ignore[arg-type]
    return requests.request_from_wire(message, TaskType.CALL, {}, payload_bytes_max=LIMIT)


def decode_put(**fields: object) -> Import:
    given = {"namespace": "orders", "process_id": "1", "status": 2, **fields}
    message = pb.PutRequest(**given)  # type: ignore[arg-type]
    return requests.put_from_wire(message, {}, payload_bytes_max=LIMIT)


@pytest.mark.parametrize("kind", [pb.StartRequest, pb.CallRequest, pb.RepairRequest])
def test_accept_only_waits_for_nothing(kind: type[pb.CallRequest]) -> None:
    message = kind(namespace="orders", process_id="1", accept_only=True)
    request = requests.request_from_wire(message, TaskType.CALL, {}, payload_bytes_max=LIMIT)

    assert not request.waits


def test_metadata_that_json_cannot_hold_is_named() -> None:
    metadata = struct_pb2.Struct()
    metadata.update({"price": float("nan")})
    message = pb.StartRequest(namespace="orders", process_id="1", metadata=metadata)

    assert fields_of(
        lambda: requests.request_from_wire(message, TaskType.INIT, {}, payload_bytes_max=LIMIT)
    ) == ["metadata.price"]


@pytest.mark.parametrize("name", ["", "a" * 65, "Orders", "a b", "a\0", "a\n", "é", "a/b"])
def test_an_invalid_namespace_is_refused_by_its_field(name: str) -> None:
    assert fields_of(lambda: decode_call(namespace=name)) == ["namespace"]


@pytest.mark.parametrize("value", ["a" * 256, "é" * 128, " ", "a\u00a0b", "👩‍👩‍👧", "/../", "%00"])
def test_any_other_id_is_fine(value: str) -> None:
    assert decode_call(process_id=value, idempotency_key=value).key.process_id == value


def test_an_empty_process_id_is_named() -> None:
    assert fields_of(lambda: decode_call(process_id="")) == ["process_id"]


def test_args_beyond_the_namespace_limit_are_refused_with_size_and_limit() -> None:
    assert decode_call(args=b"x" * LIMIT).args == b"x" * LIMIT
    with pytest.raises(
        errors.InvalidRequestError, match="args: must be at most 1000 bytes, got 1001"
    ):
        decode_call(args=b"x" * (LIMIT + 1))


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ({f"k{i}": "" for i in range(65)}, "caller_context"),
        ({"k": "x" * 8192}, "caller_context"),
        ({"k": "é" * 4096}, "caller_context"),
        ({"k": "a\0"}, "caller_context['k']"),
        ({"k\0": "a"}, "caller_context['k\\x00']"),
    ],
)
def test_a_caller_context_out_of_bounds_is_named(pairs: dict[str, str], field: str) -> None:
    assert fields_of(lambda: decode_call(caller_context=pairs)) == [field]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"after": -1}, "history_range.after"),
        ({"limit": -1}, "history_range.limit"),
        ({"limit": 100_001}, "history_range.limit"),
        ({"direction": 7}, "history_range.direction"),
    ],
)
def test_a_bad_range_is_named(fields: dict[str, int], path: str) -> None:
    history_range = types_pb2.HistoryRange(**fields)  # type: ignore[arg-type]
    get = pb.GetRequest(namespace="orders", process_id="1", history_range=history_range)

    assert fields_of(lambda: decode_call(history_range=history_range)) == [path]
    assert fields_of(lambda: requests.get_from_wire(get)) == [path]


def test_a_get_without_a_range_reads_all() -> None:
    reading = requests.get_from_wire(pb.GetRequest(namespace="a", process_id="b", await_init=True))

    assert reading.history_range == HistoryRange()
    assert reading.await_init


@pytest.mark.parametrize("kind", [pb.SimpleRepairRequest, pb.RemoveRequest])
def test_a_bad_process_key_is_refused_by_its_field(kind: type[pb.RemoveRequest]) -> None:
    good = kind(namespace="a", process_id="b")

    assert requests.key_of_request(good) == process_key("a", "b")
    assert fields_of(lambda: requests.key_of_request(kind())) == ["namespace", "process_id"]


TASK_REQUESTS = pytest.mark.parametrize("kind", [pb.AwaitTaskRequest, pb.CancelRequest])


@TASK_REQUESTS
@pytest.mark.parametrize("task", [{"task_id": 7}, {"idempotency_key": "k"}])
def test_a_task_is_named_one_way(kind: type[pb.CancelRequest], task: dict[str, Any]) -> None:
    message = kind(namespace="a", process_id="b", **task)

    assert requests.task_from_wire(message).task == next(iter(task.values()))


@TASK_REQUESTS
@pytest.mark.parametrize(
    ("task", "field"),
    [({}, "task"), ({"task_id": 0}, "task_id"), ({"idempotency_key": ""}, "idempotency_key")],
)
def test_no_task_or_an_invalid_one_is_refused(
    kind: type[pb.CancelRequest], task: dict[str, Any], field: str
) -> None:
    message = kind(namespace="a", process_id="b", **task)

    assert fields_of(lambda: requests.task_from_wire(message)) == [field]


@pytest.mark.parametrize("key", ["k" * 257, "a\0"])
def test_an_invalid_idempotency_key_is_refused_by_its_field(key: str) -> None:
    assert fields_of(lambda: decode_call(idempotency_key=key)) == ["idempotency_key"]


@pytest.mark.parametrize("size", [-1, 1001])
def test_a_page_size_out_of_bounds_is_named(size: int) -> None:
    trace = pb.TraceRequest(namespace="a", process_id="b", page_size=size)
    listing = pb.ListRequest(namespace="a", page_size=size)

    assert fields_of(lambda: requests.trace_from_wire(trace)) == ["page_size"]
    assert fields_of(lambda: requests.list_from_wire(listing)) == ["page_size"]


@pytest.mark.parametrize(
    "token",
    [
        "!",
        "a",
        "é",
        "x" * 2000,
        page_tokens.NAMESPACES.write("orders"),
        "dC0x",  # t-1
        "dDk5OTk5OTk5OTk5OTk5OTk5OTk5",  # t99999999999999999999
        page_tokens.encode("p", "1/"),
        page_tokens.encode("p", "1/a"),
        page_tokens.encode("p", "1/a/"),
        page_tokens.encode("p", "/a/1"),
        page_tokens.encode("p", "9999999999999999999/a/1"),
        page_tokens.encode("p", "1/a/\0"),
        page_tokens.encode("p", "1/A/1"),
        page_tokens.encode("p", "1/another/1"),
    ],
)
def test_a_garbled_page_token_is_named(token: str) -> None:
    trace = pb.TraceRequest(namespace="a", process_id="b", page_token=token)
    listing = pb.ListRequest(namespace="a", page_token=token)

    assert fields_of(lambda: requests.trace_from_wire(trace)) == ["page_token"]
    assert fields_of(lambda: requests.list_from_wire(listing)) == ["page_token"]


def test_a_list_of_all_namespaces_continues_in_any_of_them() -> None:
    token = page_tokens.encode("p", "1/another/1")

    query = requests.list_from_wire(pb.ListRequest(page_token=token))

    assert query.namespace == ""
    assert query.before is not None
    assert query.before[1:] == ("another", "1")


def test_a_list_of_any_status_has_no_filter() -> None:
    message = pb.ListRequest(namespace="orders", statuses=[3, 0])  # type: ignore[list-item]

    assert requests.list_from_wire(message).statuses == ()


def test_a_bad_list_is_named_field_by_field() -> None:
    message = pb.ListRequest(
        namespace="Orders",
        statuses=[1, 9],  # type: ignore[list-item]
        created_from=timestamp_pb2.Timestamp(nanos=-1),
        created_to=timestamp_pb2.Timestamp(seconds=2**60),
        metadata=struct_pb2.Struct(fields={"a": struct_pb2.Value(string_value="\0")}),
        page_size=-5,
        page_token="?",
    )

    assert fields_of(lambda: requests.list_from_wire(message)) == [
        "namespace",
        "statuses[1]",
        "created_from",
        "created_to",
        "metadata.a",
        "page_size",
        "page_token",
    ]


def test_a_list_by_an_unknown_cause_is_refused() -> None:
    message = pb.ListRequest(namespace="a", causes=[11, 0, 99])  # type: ignore[list-item]

    assert fields_of(lambda: requests.list_from_wire(message)) == ["causes[1]", "causes[2]"]


def test_a_list_that_ends_before_it_begins_is_named() -> None:
    message = pb.ListRequest(
        namespace="a",
        created_from=timestamp_pb2.Timestamp(seconds=2),
        created_to=timestamp_pb2.Timestamp(seconds=1),
    )

    assert fields_of(lambda: requests.list_from_wire(message)) == ["created_to"]


@pytest.mark.parametrize("status", [0, 1, 9])
def test_a_process_is_put_running_broken_or_finished(status: int) -> None:
    assert fields_of(lambda: decode_put(status=status)) == ["status"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"status": 2, "detail": "x"}, "detail"),
        ({"status": 4, "detail": "x"}, "detail"),
        ({"status": 2, "corrupted_by_type": 5}, "corrupted_by_type"),
        ({"status": 3, "corrupted_by_type": 99}, "corrupted_by_type"),
        ({"status": 3, "timer": types_pb2.SetTimer()}, "timer"),
        ({"status": 4, "timer": types_pb2.SetTimer()}, "timer"),
        ({"status": 2, "result": b"x"}, "result"),
        ({"status": 3, "result": b"x"}, "result"),
        ({"previous_status": 77}, "previous_status"),
        ({"aux_state": b"x" * 1001}, "aux_state"),
        ({"status": 3, "detail": "a\0"}, "detail"),
        ({"status": 3, "detail": "a" * 1001}, "detail"),
        ({"status": 4, "result": b"x" * 1001}, "result"),
        ({"created_at": timestamp_pb2.Timestamp(nanos=-1)}, "created_at"),
        ({"status_changed_at": timestamp_pb2.Timestamp(nanos=-1)}, "status_changed_at"),
        ({"history": [{}, {"payload": b"x" * 1001}]}, "history[1].payload"),
        ({"timer": types_pb2.SetTimer(args=b"x" * 1001)}, "timer.args"),
        ({"idempotency_key": "\0"}, "idempotency_key"),
        ({"metadata": {"a": "\0"}}, "metadata.a"),
    ],
)
def test_a_put_that_does_not_fit_is_named(fields: dict[str, object], path: str) -> None:
    assert fields_of(lambda: decode_put(**fields)) == [path]


def test_violations_are_bounded() -> None:
    history = [types_pb2.NewEvent(payload=b"x" * 1001)] * 500

    assert len(fields_of(lambda: decode_put(history=history))) == shapes.VIOLATIONS_MAX
