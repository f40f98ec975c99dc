"""Every status that the engine may send becomes its class, with its fields."""

import datetime as dt
from typing import Any

import grpc
import pytest

from progressor import errors, job_errors
from progressor.api.calls.status import status_of
from progressor.sdk import Client, UnexpectedStatusError
from progressor.sdk.transport.failures import error_for, read_status
from progressor.v1 import process_service_pb2 as pb
from tests.unit.sdk.scripted_engine import HANG, ScriptedEngine, refusal, scripted_engine

Code = grpc.StatusCode

NAMED: dict[str, Any] = {"namespace": "orders", "process_id": "p"}
SCHEDULE: dict[str, Any] = {"namespace": "orders", "schedule_id": "s"}
JOB: dict[str, Any] = {"namespace": "orders", "job_id": "j"}
FAILURE: dict[str, Any] = {"broken_by": "5", "failure_code": "13", "failure_reason": "NO_STOCK"}
FAILURE_READ: dict[str, Any] = {"broken_by": 5, "failure_code": 13, "failure_reason": "NO_STOCK"}
TASK: dict[str, Any] = {"process_id": "p", "task_id": "7", "detail": "out of tea"}
SOON = dt.timedelta(milliseconds=250)


@pytest.fixture(autouse=True, params=["session", "unary"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how requests reach the engine: each test runs both ways."""
    monkeypatch.setattr(ScriptedEngine, "has_sessions", request.param == "session")
    return str(request.param)


MAPPING: list[tuple[grpc.Status, type[errors.ProgressorError], dict[str, Any]]] = [
    (
        refusal(Code.INVALID_ARGUMENT, "INVALID_REQUEST", violations=[("process_id", "is empty")]),
        errors.InvalidRequestError,
        {"violations": (errors.FieldViolation("process_id", "is empty"),)},
    ),
    (
        refusal(Code.INVALID_ARGUMENT, "INVALID_REQUEST"),
        errors.InvalidRequestError,
        {"violations": (errors.FieldViolation("request", "as the engine says"),)},
    ),
    (
        refusal(Code.NOT_FOUND, "NAMESPACE_NOT_FOUND", namespace="orders"),
        errors.NamespaceNotFoundError,
        {"namespace": "orders"},
    ),
    (refusal(Code.NOT_FOUND, "PROCESS_NOT_FOUND", **NAMED), errors.ProcessNotFoundError, NAMED),
    (
        refusal(Code.NOT_FOUND, "EVENT_NOT_FOUND", process_id="p", event_id="9"),
        errors.EventNotFoundError,
        {"process_id": "p", "event_id": 9},
    ),
    (
        refusal(Code.NOT_FOUND, "TASK_NOT_FOUND", process_id="p", task_id="7"),
        errors.TaskNotFoundError,
        {"process_id": "p", "task": 7},
    ),
    (
        refusal(Code.NOT_FOUND, "TASK_NOT_FOUND", process_id="p", idempotency_key="k"),
        errors.TaskNotFoundError,
        {"process_id": "p", "task": "k"},
    ),
    (
        refusal(Code.ALREADY_EXISTS, "PROCESS_ALREADY_EXISTS", **NAMED),
        errors.ProcessAlreadyExistsError,
        NAMED,
    ),
    (
        refusal(Code.ALREADY_EXISTS, "NAMESPACE_ALREADY_EXISTS", namespace="orders"),
        errors.NamespaceAlreadyExistsError,
        {"namespace": "orders"},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "NAMESPACE_NOT_EMPTY", namespace="orders"),
        errors.NamespaceNotEmptyError,
        {"namespace": "orders"},
    ),
    (
        refusal(
            Code.FAILED_PRECONDITION,
            "NAMESPACE_CHANGED",
            namespace="orders",
            expected="3",
            actual="4",
        ),
        errors.NamespaceChangedError,
        {"namespace": "orders", "expected": 3, "actual": 4},
    ),
    (
        refusal(Code.NOT_FOUND, "GATE_NOT_FOUND", namespace="orders", gate="db-1"),
        errors.GateNotFoundError,
        {"namespace": "orders", "gate": "db-1"},
    ),
    (
        refusal(Code.NOT_FOUND, "SCHEDULE_NOT_FOUND", **SCHEDULE),
        job_errors.ScheduleNotFoundError,
        SCHEDULE,
    ),
    (
        refusal(Code.ALREADY_EXISTS, "SCHEDULE_ALREADY_EXISTS", **SCHEDULE),
        job_errors.ScheduleAlreadyExistsError,
        SCHEDULE,
    ),
    (
        refusal(Code.ABORTED, "SCHEDULE_CHANGED", schedule_id="s", expected="1", actual="3"),
        job_errors.ScheduleChangedError,
        {"schedule_id": "s", "expected": 1, "actual": 3},
    ),
    (refusal(Code.NOT_FOUND, "JOB_NOT_FOUND", **JOB), job_errors.JobNotFoundError, JOB),
    (refusal(Code.UNIMPLEMENTED, "LED_BY_ENGINE", **JOB), job_errors.LedByEngineError, JOB),
    (refusal(Code.FAILED_PRECONDITION, "JOB_ENDED", **JOB), job_errors.JobEndedError, JOB),
    (refusal(Code.FAILED_PRECONDITION, "JOB_NOT_FAILED", **JOB), job_errors.JobNotFailedError, JOB),
    (
        refusal(Code.FAILED_PRECONDITION, "GATE_IN_USE", namespace="orders", gate="db-1"),
        errors.GateInUseError,
        {"namespace": "orders", "gate": "db-1"},
    ),
    (
        refusal(Code.ABORTED, "GATE_CHANGED", gate="db-1", expected="3", actual="4"),
        errors.GateChangedError,
        {"gate": "db-1", "expected": 3, "actual": 4},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "TASK_IS_RUNNING", process_id="p", task_id="7"),
        errors.TaskIsRunningError,
        {"process_id": "p", "task_id": 7},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "TASK_HAS_ENDED", process_id="p", task_id="7"),
        errors.TaskHasEndedError,
        {"process_id": "p", "task_id": 7},
    ),
    (
        refusal(
            Code.INVALID_ARGUMENT, "IDEMPOTENCY_KEY_REUSED", process_id="p", idempotency_key="k"
        ),
        errors.IdempotencyKeyReusedError,
        {"process_id": "p", "idempotency_key": "k"},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "PROCESS_FAILED", own="true", **TASK, **FAILURE),
        errors.ProcessFailedError,
        {"process_id": "p", "detail": "out of tea", "task_id": 7, "own": True, **FAILURE_READ},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "PROCESS_FAILED", process_id="p"),
        errors.ProcessFailedError,
        {
            "process_id": "p",
            "detail": "as the engine says",
            "task_id": None,
            "own": False,
            "broken_by": None,
            "failure_code": None,
            "failure_reason": None,
        },
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "PROCESS_IS_RUNNING", process_id="p"),
        errors.ProcessIsRunningError,
        {"process_id": "p"},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "PROCESS_FINISHED", process_id="p"),
        errors.ProcessFinishedError,
        {"process_id": "p"},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "REPAIR_FAILED", **TASK, **FAILURE),
        errors.RepairFailedError,
        {"process_id": "p", "detail": "out of tea", "task_id": 7, "own": True, **FAILURE_READ},
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "TASK_FAILED", **TASK, **FAILURE),
        errors.TaskFailedError,
        {"process_id": "p", "detail": "out of tea", "task_id": 7, "own": True, **FAILURE_READ},
    ),
    (
        refusal(Code.ABORTED, "PROCESS_REMOVED", process_id="p"),
        errors.ProcessRemovedError,
        {"process_id": "p"},
    ),
    (
        refusal(Code.ABORTED, "TASK_CANCELLED", process_id="p", task_id="7"),
        errors.TaskCancelledError,
        {"process_id": "p", "task_id": 7},
    ),
    (
        refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after=SOON, detail="queue of orders"),
        errors.OverloadedError,
        {"what": "queue of orders", "retry_after": SOON},
    ),
    (
        refusal(Code.UNAVAILABLE, "SHUTTING_DOWN", retry_after=SOON),
        errors.ShuttingDownError,
        {"retry_after": SOON},
    ),
    (
        refusal(Code.UNAVAILABLE, "REPLICA_STOPPED", retry_after=SOON),
        errors.ReplicaStoppedError,
        {"retry_after": SOON},
    ),
    (
        refusal(Code.UNAVAILABLE, "STORAGE_UNAVAILABLE"),
        errors.StorageUnavailableError,
        {"why": "as the engine says", "retry_after": dt.timedelta(seconds=1)},
    ),
    (
        refusal(Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", task_id="7"),
        errors.DeadlineExceededError,
        {"task_id": 7},
    ),
    (
        refusal(Code.UNAUTHENTICATED, "NO_STOCK", domain="processor", item="tea"),
        errors.RejectedError,
        {
            "message": "as the engine says",
            "code": 16,
            "processor_reason": "NO_STOCK",
            "metadata": {"item": "tea"},
        },
    ),
    (
        refusal(Code.INTERNAL, "INTERNAL"),
        UnexpectedStatusError,
        {"code": Code.INTERNAL, "message": "as the engine says", "engine_reason": "INTERNAL"},
    ),
    (
        refusal(Code.DATA_LOSS, "", domain="another.domain"),
        UnexpectedStatusError,
        {"code": Code.DATA_LOSS, "engine_reason": ""},
    ),
]


@pytest.mark.parametrize(("status", "kind", "fields"), MAPPING)
async def test_a_status_becomes_its_class_with_its_fields(
    status: grpc.Status, kind: type[errors.ProgressorError], fields: dict[str, Any]
) -> None:
    async with scripted_engine(status) as engine, Client(engine.address) as client:
        with pytest.raises(kind) as raised:
            await client.call("p")

    assert type(raised.value) is kind
    assert {name: getattr(raised.value, name) for name in fields} == fields


def test_every_reason_of_the_wire_is_mapped() -> None:
    def tree(kind: type[errors.ProgressorError]) -> set[type[errors.ProgressorError]]:
        return {kind}.union(*(tree(below) for below in kind.__subclasses__()))

    # The last three are an operator's, and stay on the engine's machine.
    never_sent = {
        "INTERNAL",
        "INVALID_ANSWER",
        "CONFIGURATION",
        "EMBEDDED_POSTGRES",
        "MIGRATION",
    }
    mapped = {kind.reason for _, kind, _ in MAPPING}
    sent = {
        kind.reason for kind in tree(errors.ProgressorError) if kind.__module__ == errors.__name__
    }

    assert sent - never_sent <= mapped


@pytest.mark.parametrize(
    ("status", "kind", "fields"),
    [entry for entry in MAPPING if entry[1] is not UnexpectedStatusError],
)
def test_what_the_engine_tells_of_an_error_is_that_error_again(
    status: grpc.Status, kind: type[errors.ProgressorError], fields: dict[str, Any]
) -> None:
    original = error_for(read_status(as_raised(status.code, status.trailing_metadata), "engine"))
    told = status_of(original, subject={})
    told_again = error_for(read_status(as_raised(told.code, told.trailing_metadata), "engine"))

    assert type(told_again) is kind
    if kind is not errors.StorageUnavailableError:  # what the driver said stays with the engine
        assert {name: getattr(told_again, name) for name in fields} == fields


def as_raised(code: grpc.StatusCode, trailers: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers))


async def test_a_garbled_detail_leaves_the_plain_status() -> None:
    async def garble(_request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        await context.abort(Code.INTERNAL, "broken pipe organ")
        return b""

    class AnyMethod(grpc.GenericRpcHandler):
        def service(self, _details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(garble)

    server = grpc.aio.server(handlers=[AnyMethod()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}") as client:
        with pytest.raises(UnexpectedStatusError, match="broken pipe organ"):
            await client.get("p")
    await server.stop(None)


async def test_a_deadline_of_ones_own_passes_without_a_task_id() -> None:
    async with scripted_engine(HANG) as engine, Client(engine.address) as client:
        with pytest.raises(errors.DeadlineExceededError) as raised:
            await client.call("p", timeout=0.05)

    assert raised.value.task_id is None


async def test_an_unknown_response_is_no_silent_success() -> None:
    answer = pb.CallResponse(task_id=1, response=b"{not json")
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        with pytest.raises(ValueError, match="malformed"):
            await client.call("p")
