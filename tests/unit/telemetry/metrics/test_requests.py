"""What is counted of requests: admission, answers, and how callers are notified."""

import asyncio
from types import SimpleNamespace

import pytest

from progressor import errors
from progressor.api.calls.request_count import NAMESPACES_MAX, RequestCount
from progressor.domain.processes.admission import Import, Verdict
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.process import ProcessStatus
from progressor.storage.processes.processes import Put
from progressor.storage.rows.effects import NO_EFFECTS
from progressor.telemetry.instruments import OVERFLOW
from progressor.telemetry.metrics.registry import Metrics
from progressor.v1 import namespace_service_pb2, process_service_pb2
from tests.support.builders import make_request, seconds
from tests.support.runtime.harness import KEY, WAITING, Harness
from tests.support.runtime.virtual_time import in_virtual_time, settled
from tests.support.telemetry.measured import counted, recorded

RETRY_AFTER = seconds(1)
NOT_FOUND = 5


@in_virtual_time
async def test_preparing_a_request_lasts_until_it_is_durable() -> None:
    harness = Harness()
    await harness.ask(make_request(args=b"four"))
    await asyncio.sleep(0.05)

    harness.admissions.answer(WAITING)
    await settled()

    labels = ("orders", "call")
    assert recorded(harness.metrics.request_preparing) == {labels: (1, 50)}
    assert counted(harness.metrics.admitted) == {labels: 1}
    assert counted(harness.metrics.bytes_written) == {("orders", "args"): 4}
    assert counted(harness.metrics.callers_waiting) == {(): 1}


@in_virtual_time
async def test_an_import_writes_its_history() -> None:
    harness = Harness()
    harness.processes.put.return_value = Put(verdict=Verdict.ACCEPTED, task_id=1), NO_EFFECTS
    history = (NewEvent(payload=b"one"), NewEvent(payload=b"three"))

    await harness.requests.put(
        Import(key=KEY, status=ProcessStatus.RUNNING, history=history, aux_state=b"state")
    )

    assert counted(harness.metrics.events_written) == {("orders",): 2}
    assert counted(harness.metrics.bytes_written) == {
        ("orders", "events"): 8,
        ("orders", "aux_state"): 5,
    }


def rejected() -> errors.RejectedError:
    return errors.RejectedError("no", code=NOT_FOUND, processor_reason="of its own")


@pytest.mark.parametrize(
    ("error", "outcome", "reason", "names_it"),
    [
        (errors.ProcessFinishedError("p"), "refused", "PROCESS_FINISHED", True),
        (errors.ProcessNotFoundError("orders", "p"), "refused", "PROCESS_NOT_FOUND", True),
        (errors.NamespaceNotFoundError("orders"), "refused", "NAMESPACE_NOT_FOUND", False),
        (
            errors.InvalidRequestError(errors.FieldViolation("args", "too long")),
            "refused",
            "INVALID_REQUEST",
            False,
        ),
        (rejected(), "failed", "REJECTED", True),
        (errors.ProcessFailedError("p", "why", task_id=7), "failed", "PROCESS_FAILED", True),
        (errors.RepairFailedError("p", "why", 7), "failed", "REPAIR_FAILED", True),
        (errors.OverloadedError("callers", RETRY_AFTER), "unavailable", "OVERLOADED", False),
        (errors.ShuttingDownError(RETRY_AFTER), "unavailable", "SHUTTING_DOWN", False),
        (errors.DeadlineExceededError(7), "unavailable", "DEADLINE_EXCEEDED", False),
        (errors.StorageUnavailableError("away"), "unavailable", "STORAGE_UNAVAILABLE", False),
        (errors.StorageRefusedError("a value"), "internal", "INTERNAL", False),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Exception) else None,
)
def test_an_end_is_counted_by_who_has_to_act(
    error: errors.ProgressorError,
    outcome: str,
    reason: str,
    names_it: bool,
) -> None:
    metrics = Metrics()
    request = process_service_pb2.CallRequest(namespace="orders")

    RequestCount(metrics).refused("Call", request, error)

    name = "orders" if names_it else ""
    assert counted(metrics.requests) == {(name, "Call", outcome, reason): 1}


def test_a_namespace_that_was_found_once_is_named_whatever_comes() -> None:
    metrics = Metrics()
    count = RequestCount(metrics)
    request = process_service_pb2.CallRequest(namespace="orders")

    count.left("Call", request)
    count.answered("Call", request)
    count.left("Call", request)
    count.broke("Call", request)

    assert counted(metrics.requests) == {
        ("", "Call", "cancelled", ""): 1,
        ("orders", "Call", "ok", ""): 1,
        ("orders", "Call", "cancelled", ""): 1,
        ("orders", "Call", "internal", "INTERNAL"): 1,
    }


def test_a_request_of_an_operator_is_about_no_namespace() -> None:
    metrics = Metrics()
    request = namespace_service_pb2.CreateNamespaceRequest()

    RequestCount(metrics).answered("CreateNamespace", request)

    assert counted(metrics.requests) == {("", "CreateNamespace", "ok", ""): 1}


def test_namespaces_beyond_the_bound_are_counted_as_one() -> None:
    metrics = Metrics()
    count = RequestCount(metrics)
    for number in range(NAMESPACES_MAX + 5):
        count.answered("Call", SimpleNamespace(namespace=f"real-{number}"))

    assert counted(metrics.requests)[OVERFLOW, "Call", "ok", ""] == 5
